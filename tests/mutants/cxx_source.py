"""Mutants of C++ as this repository formats it (clang-format): where a source can be changed, and into what.

No parser: it relies on binary operators having spaces around them and template brackets none. Texts of errors and of the log are left
alone, because no test reads them whole; so are declarations, which rarely compile without.
"""

import dataclasses
import re

TOKEN = re.compile(r'\s+|//[^\n]*|/\*.*?\*/|#[^\n]*(?:\\\n[^\n]*)*|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'|'
                   r'[A-Za-z_]\w*|\d[\w.\']*|->|::|<=>|<<=?|[<>=!+\-*/%&|^]=|&&|\|\||\+\+|--|.', re.S)
SWAPS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "+": "-", "-": "+", "+=": "-=", "-=": "+=",
         "&&": "||", "||": "&&", "true": "false", "false": "true"}
NAMES = {"<": "boundary", "<=": "boundary", ">": "boundary", ">=": "boundary", "==": "equality", "!=": "equality", "+": "plus",
         "-": "plus", "+=": "plus", "-=": "plus", "&&": "and-or", "||": "and-or", "true": "constant", "false": "constant"}
# Calls that make a text: nothing inside is changed.
TEXTS = {"Bad", "Wrong", "Fail", "Print", "Errno", "format", "to_string", "static_assert", "where", "bad"}
KEYWORDS = {"return", "const", "constexpr", "auto", "using", "break", "continue", "if", "for", "while", "case", "default", "static", "switch",
            "do", "else", "goto", "throw", "struct", "class", "enum", "public", "private", "protected", "template", "typename", "delete"}
# What a returned {} is anyway.
DEFAULTS = {"{}", "{0, 0}", "0", "OkStatus()", "std::nullopt", "nullptr"}


@dataclasses.dataclass(frozen=True)
class Mutant:
    file: str
    function: str
    operator: str
    line: int  # from 1
    start: int
    end: int
    text: str  # what stands there instead
    before: str  # the line, stripped

    def key(self):
        return f"{self.file}:{self.function}:{self.operator}"

    def of(self, source):
        return source[:self.start] + self.text + source[self.end:]


@dataclasses.dataclass
class Token:
    text: str
    start: int
    function: str = ""
    mute: bool = False  # part of a text

    @property
    def end(self):
        return self.start + len(self.text)


def tokens_of(source):
    """Tokens without space and comments, each with the function whose body it is in ("" outside of any)."""
    out = []
    for match in TOKEN.finditer(source):
        text = match.group()
        if not text.isspace() and not text.startswith(("//", "/*", "#")):
            out.append(Token(text, match.start()))
    scopes, header, texts, depth = [], 0, [], 0
    for i, token in enumerate(out):
        token.function = next((s for s in reversed(scopes) if s), "")
        token.mute = bool(texts)
        if token.text in "([":
            depth += 1
            if token.text == "(" and out[i - 1].text in TEXTS:
                texts.append(depth)
        elif token.text in ")]":
            if texts and texts[-1] == depth:
                texts.pop()
            depth -= 1
        elif token.text == "{":
            head = [t.text for t in out[header:i]]
            scopes.append("" if token.function or "namespace" in head or "(" not in head else name_of(head))
            header = i + 1
        elif token.text == "}":
            scopes.pop()
            header = i + 1
        elif token.text == ";":
            header = i + 1
    return out


def name_of(head):
    """The function that a head such as `Status Banks :: Back ( ... )` defines."""
    at = head.index("(")
    name = head[at - 1] if at > 0 and re.match(r"\w", head[at - 1]) else "operator"
    return f"{head[at - 3]}::{name}" if at > 2 and head[at - 2] == "::" else name


def closing(tokens, at):
    """The index of the bracket that closes the one at `at`."""
    depth = 0
    for i in range(at, len(tokens)):
        depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(tokens[i].text, 0)
        if depth == 0:
            return i
    raise ValueError("a bracket without its end")


def statement(tokens, at):
    """The index of the `;` that ends the statement at `at`, or None if it is none of one expression."""
    depth = 0
    for i in range(at, len(tokens)):
        text = tokens[i].text
        depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(text, 0)
        if depth < 0:
            return None
        if depth == 0 and text == ";":
            return i
    return None


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
            return False  # of a for's head
        if word in "([":
            depth += 1
        elif word in ")]":
            depth -= 1
        elif depth == 0:
            # two words side by side, or a type's * and &, begin a declaration
            if before and re.match(r"\w", word) and (re.match(r"[\w>]", before) or before in ("*", "&")) and before != "*first":
                return False
            before = "*first" if word == "*" and before is None else word
    return words[-1] == ")" and "(" in words


def mutants(file, source):
    """All mutants of a source, in order.

    >>> source = "int F(std::set<int> s) { if (s.size() < 3 && Done()) s.insert(1); return Bad(s.size() + 1); }"
    >>> [(m.function, m.operator, m.text) for m in mutants("f.cc", source)][:3]
    [('F', 'negate', '!(s.size() < 3 && Done())'), ('F', 'boundary', '<='), ('F', 'and-or', '||')]
    >>> [(m.operator, m.of(source)[42:]) for m in mutants("f.cc", source)][3:]
    [('remove', '&& Done()) (void)0; return Bad(s.size() + 1); }'), ('return', '&& Done()) s.insert(1); return {}; }')]
    """
    tokens = tokens_of(source)
    lines = source.splitlines()
    out = []

    def add(function, operator, start, end, text):
        line = source.count("\n", 0, start) + 1
        out.append(Mutant(file, function, operator, line, start, end, text, lines[line - 1].strip()))

    for i, token in enumerate(tokens):
        if not token.function or token.mute:
            continue
        text, after = token.text, tokens[i + 1] if i + 1 < len(tokens) else token
        spaced = source[token.start - 1].isspace() and source[token.end:token.end + 1].isspace()
        if text in SWAPS and (spaced or text in ("true", "false")):
            add(token.function, NAMES[text], token.start, token.end, SWAPS[text])
        if text in ("if", "while") and after.text == "(":
            end = closing(tokens, i + 1)
            first = i + 2
            for j in range(first, end):
                if tokens[j].text == ";":
                    first = j + 1
            words = [t.text for t in tokens[first:end]]
            # of one equality alone, the other operator is the same mutant
            if "=" not in words and not ({"==", "!="} & set(words) and not {"&&", "||"} & set(words)):
                inner = source[tokens[first].start:tokens[end].start]
                add(token.function, "negate", tokens[first].start, tokens[end].start, f"!({inner})")
        if text == "return" and after.text not in (";", "true", "false"):
            end = statement(tokens, i)
            if end and source[after.start:tokens[end].start] not in DEFAULTS:
                add(token.function, "return", after.start, tokens[end].start, "{}")
        if tokens[i - 1].text in ";{})" or tokens[i - 1].text == "else":
            begins = tokens[i - 1].text != ")" or _after_head(tokens, i - 1)
            end = statement(tokens, i) if begins else None
            if end and removable([t.text for t in tokens[i:end]] or ["return"]):
                add(token.function, "remove", token.start, tokens[end].start, "(void)0")
    return out


def _after_head(tokens, at):
    """Whether the `)` at `at` ends the head of an if, for or while."""
    depth = 0
    for i in range(at, -1, -1):
        depth += {")": 1, "(": -1}.get(tokens[i].text, 0)
        if depth == 0:
            return tokens[i - 1].text in ("if", "for", "while")
    return False
