"""Places where a C++ source can be changed, and the changes; and the source with all changes, inactive (cxx_helpers.h
activates one).

Error and log texts are not changed, because no test reads them completely. Declarations, which rarely compile without a
part, and code outside of functions are not changed either.
"""

import dataclasses
import re

from cxx_source import left, right, statement, tokens_of

SWAPS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "+": "-", "-": "+", "+=": "-=", "-=": "+=",
         "&&": "||", "||": "&&", "true": "false", "false": "true"}
HELPERS = {"<": "Less", "<=": "AtMost", ">": "More", ">=": "AtLeast", "==": "Equal", "!=": "Differ", "+": "Add", "-": "Subtract"}
KEYWORDS = {"return", "const", "constexpr", "auto", "using", "break", "continue", "if", "for", "while", "case", "default", "static", "switch",
            "do", "else", "goto", "throw", "struct", "class", "enum", "public", "private", "protected", "template", "typename", "delete"}
# Expressions that equal a returned {}.
DEFAULTS = {"{}", "{0, 0}", "0", "false", "OkStatus()", "std::nullopt", "nullptr"}


@dataclasses.dataclass(frozen=True)
class Mutant:
    file: str
    function: str
    line: int  # from 1
    was: str
    becomes: str

    def key(self):
        """The name in the list of explained mutants, without line numbers, which change."""
        return f"{self.file} {self.function}: {self.was} -> {self.becomes}"


@dataclasses.dataclass(frozen=True)
class Edit:
    """Inserts texts before and after source[start:end]."""
    start: int
    end: int
    before: str
    after: str


def short(text):
    text = " ".join(text.split())
    return text if len(text) <= 240 else text[:240] + " ..."


class Finder:
    """Records the mutants of one source, numbered from `first`, and the edits that insert them."""

    def __init__(self, file, source, first):
        self.file, self.source, self.first = file, source, first
        self.tokens = tokens_of(source)
        self.mutants, self.edits = [], []

    def slice(self, a, b):
        """The source of the tokens in [a, b)."""
        return self.source[self.tokens[a].start:self.tokens[b - 1].end]

    def note(self, at, was, becomes):
        token = self.tokens[at]
        self.mutants.append(Mutant(self.file, token.function, self.source.count("\n", 0, token.start) + 1, short(was), short(becomes)))
        return self.first + len(self.mutants) - 1

    def wrap(self, a, b, before, after):
        self.edits.append(Edit(self.tokens[a].start, self.tokens[b - 1].end, before, after))

    def swap(self, at, to):
        """Replaces one token by another, usually a comma."""
        token = self.tokens[at]
        self.edits.append(Edit(token.start, token.end, to, None))

    def find(self):
        for i, token in enumerate(self.tokens):
            if not token.function or token.mute:
                continue
            if token.text in ("if", "while") and self.tokens[i + 1].text == "(":
                self.condition(i)
            if token.text in ("true", "false") and self.tokens[i - 2].text != "while":  # a loop that a return ends
                self.swap(i, ("!" if token.text == "true" else "") + f"::mutants::Awake({self.note(i, token.text, SWAPS[token.text])})")
            elif token.text in ("+=", "-="):
                self.accumulate(i)
            elif token.text in SWAPS and token.level is not None:
                self.operator(i)
            if token.text == "return":
                self.returned(i)
            elif i and (self.tokens[i - 1].text in ";{}" or self.tokens[i - 1].text == "else" or self.after_head(i - 1)):
                self.left_out(i)
        return self

    def condition(self, i):
        """Negates the condition, unless it is a single equality: there the other operator is the same change."""
        end = self.tokens[i + 1].pair
        first = i + 2
        for j in range(first, end):
            if self.tokens[j].text == ";":
                first = j + 1
        words = {t.text for t in self.tokens[first:end]}
        if "=" in words or words & {"==", "!="} and not words & {"&&", "||"} or words in ({"true"}, {"false"}):
            return
        text = self.slice(first, end)
        self.wrap(first, end, f"::mutants::Negate({self.note(first, text, f'!({text})')}, static_cast<bool>(", "))")

    def operator(self, i):
        token, a, b = self.tokens[i], left(self.tokens, i), right(self.tokens, i)
        if token.text == "+" and any(t.text.startswith('"') for t in self.tokens[a:b]):
            return  # a text
        number = self.note(i, self.slice(a, b), f"{self.slice(a, i)} {SWAPS[token.text]} {self.slice(i + 1, b)}")
        if token.text in HELPERS:
            self.wrap(a, b, f"::mutants::{HELPERS[token.text]}({number}, ", ")")
            self.swap(i, ",")
        else:  # the second operand is evaluated only if the first one does not decide
            awake = f"::mutants::Awake({number})"
            then, other = ("", f" : {awake}") if token.text == "&&" else (f"!{awake} : ", "")
            self.wrap(a, b, "(static_cast<bool>(", f"){other})")
            self.swap(i, f") != {awake} ? {then}static_cast<bool>(")

    def accumulate(self, i):
        token, end = self.tokens[i], right(self.tokens, i)
        number = self.note(i, f"{token.text} {self.slice(i + 1, end)}", f"{SWAPS[token.text]} {self.slice(i + 1, end)}")
        self.wrap(i + 1, end, f"::mutants::Sign({number}, ", ")")

    def returned(self, i):
        """Returns an empty value instead: zero, false, empty, OK."""
        end, gives = statement(self.tokens, i), self.tokens[i].gives
        if not end or end == i + 1 or self.tokens[i + 1].text in ("true", "false"):
            return
        text = self.slice(i + 1, end)
        result = gives.startswith("Result<")
        if text in DEFAULTS and not (result and text == "std::nullopt") or text.startswith(("fmt::format(", "Status(", "std::string(what)")):
            return
        number = self.note(i, f"return {text};", "return {};")
        empty = f"std::type_identity_t<{gives[len('Result<'):-1]}>{{}}" if result else "{}"
        if gives in ("auto", "&"):
            self.wrap(i + 1, end, f"::mutants::{'Value' if gives == 'auto' else 'Reference'}({number}, ", ")")
        else:
            self.wrap(i, end + 1, f"{{ if (::mutants::Awake({number})) return {empty}; ", " }")

    def left_out(self, i):
        end = statement(self.tokens, i) if re.match(r"\w|\+\+|--|[*(]", self.tokens[i].text) else None
        if end and removable([t.text for t in self.tokens[i:end]]):
            number = self.note(i, self.slice(i, end + 1), "nothing")
            self.wrap(i, end + 1, f"{{ if (!::mutants::Awake({number})) {{ ", " } }")

    def after_head(self, at):
        """Whether the token at `at` ends the head of an if, for or while."""
        return self.tokens[at].text == ")" and self.tokens[self.tokens[at].pair - 1].text in ("if", "for", "while")

    def rewritten(self):
        """The source with all edits. If several begin or end at one byte, the longer ones are outside. Lines keep their
        numbers."""
        texts = []
        for order, e in enumerate(self.edits):
            if e.after is None:
                texts.append((e.start, 2, 0, 0, e.end, e.before))
            else:
                texts.append((e.start, 1, -e.end, order, e.start, e.before))
                texts.append((e.end, 0, -e.start, -order, e.end, e.after))
        out, done = [], 0
        for start, _, _, _, end, text in sorted(texts):
            out += [self.source[done:start], text]
            done = end
        return "".join(out) + self.source[done:]


def removable(words):
    """Whether a statement of these tokens is a call, an assignment or a step.

    >>> [removable(s.split()) for s in ("f ( x )", "a . b [ i ] = 3", "++ n", "Run run ( x )", "uint64_t a = 3", "i < n ( )", "x", "spdlog :: info ( s )")]
    [True, True, True, False, False, False, False, False]
    """
    if words[0] in KEYWORDS or words[:2] == ["spdlog", "::"] or "reserve" in words:
        return False
    if words[0] in ("++", "--") or words[-1] in ("++", "--"):
        return True
    if words[:3] == ["(", "void", ")"]:
        words = words[3:]
    depth, before = 0, None
    for word in words:
        if word in ("=", "+=", "-=", "|=", "&=") and depth == 0:
            return before is not None
        if word in SWAPS and depth == 0:
            return False  # in the head of a for
        if word in "([":
            depth += 1
        elif word in ")]":
            depth -= 1
        elif depth == 0:
            # two adjacent words, or a type's * and &, begin a declaration
            if before and re.match(r"\w", word) and (re.match(r"[\w>]", before) or before in ("*", "&")) and before != "*first":
                return False
            before = "*first" if word == "*" and before is None else word
    return words[-1] == ")" and "(" in words


def changes(file, source, first=1):
    """All mutants of a source, numbered from `first`, and the source with them inserted.

    >>> source = "int F(std::set<int> s) { if (s.size() < 3 && Done()) s.insert(1); return Bad(s.size() + 1); }"
    >>> found, text = changes("f.cc", source)
    >>> for m in found: print(m.was, "->", m.becomes)
    s.size() < 3 && Done() -> !(s.size() < 3 && Done())
    s.size() < 3 -> s.size() <= 3
    s.size() < 3 && Done() -> s.size() < 3 || Done()
    s.insert(1); -> nothing
    return Bad(s.size() + 1); -> return {};
    >>> print(text[25:].replace("::mutants::", "").replace("static_cast<bool>", "bool"))
    if (Negate(1, bool((bool(Less(2, s.size() , 3) ) != Awake(3) ? bool( Done()) : Awake(3))))) { if (!Awake(4)) { s.insert(1); } } \
{ if (Awake(5)) return {}; return Bad(s.size() + 1); } }
    """
    finder = Finder(file, source, first).find()
    return finder.mutants, finder.rewritten()
