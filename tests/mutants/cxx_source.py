"""C++ in this repository's format (clang-format), as tokens: the function of each, and the ends of an operator's
operands.

This is no parser: it relies on spaces around binary operators, and none around template brackets.
"""

import dataclasses
import re

TOKEN = re.compile(r'\s+|//[^\n]*|/\*.*?\*/|#[^\n]*(?:\\\n[^\n]*)*|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'|'
                   r'[A-Za-z_]\w*|\d[\w.\']*|->|::|<=>|<<=?|(?<=\s)>>(?=\s)|[<>=!+\-*/%&|^]=|&&|\|\||\+\+|--|.', re.S)
# Calls that make a text: nothing inside them is changed.
TEXTS = {"Bad", "Wrong", "Fail", "Print", "Errno", "format", "to_string", "static_assert", "where", "bad"}
OPENS, CLOSES = {"(": ")", "[": "]", "{": "}"}, {")": "(", "]": "[", "}": "{"}
LEVELS = {",": 0, ";": 0, "return": 0, "=": 1, "+=": 1, "-=": 1, "|=": 1, "&=": 1, "?": 1, ":": 1, "||": 2, "&&": 3, "|": 4, "^": 5, "&": 6,
          "==": 7, "!=": 7, "<": 8, "<=": 8, ">": 8, ">=": 8, "<<": 9, ">>": 9, "+": 10, "-": 10, "*": 11, "/": 11, "%": 11}
BEFORE_TYPE = {"public", "private", "protected", ":", "static", "inline", "constexpr", "explicit", "virtual", "friend"}


@dataclasses.dataclass
class Token:
    text: str
    start: int
    function: str = ""  # the enclosing function; "" outside of any
    gives: str = ""  # type of a `return` here: "auto", "&" (a reference), "Result<T>", "" (any other)
    mute: bool = False  # part of a text
    pair: int = -1  # index of a bracket's other half
    level: int | None = None  # precedence of a binary operator or of the end of an expression: lower binds more loosely

    @property
    def end(self):
        return self.start + len(self.text)


def tokens_of(source):
    """Tokens without space and comments.

    >>> [(t.text, t.function, t.gives) for t in tokens_of("auto F() { return g([] { return 1; }); } Result<int> A::G() { x; }") if t.text in "g1x"]
    [('g', 'F', 'auto'), ('1', 'F', 'auto'), ('x', 'A::G', 'Result<int>')]
    """
    out = []
    for match in TOKEN.finditer(source):
        text = match.group()
        if not text.isspace() and not text.startswith(("//", "/*", "#")):
            out.append(Token(text, match.start()))
    _pair(out)
    scopes, header, texts = [], 0, []
    for i, token in enumerate(out):
        token.function, token.gives = scopes[-1] if scopes else ("", "")
        token.mute = bool(texts)
        token.level = _level(source, token)
        if token.text == "(" and i > 0 and out[i - 1].text in TEXTS:
            texts.append(token.pair)
        elif texts and texts[-1] == i:
            texts.pop()
        elif token.text == "{":
            if token.function:
                scopes.append((token.function, "auto" if _lambda(out, i) else token.gives))
            else:
                scopes.append(_function(source, out[header:i]))
            header = i + 1
        elif token.text == "}":
            scopes.pop()
            header = i + 1
        elif token.text == ";":
            header = i + 1
    return out


def _pair(tokens):
    stack = []
    for i, token in enumerate(tokens):
        if token.text in OPENS:
            stack.append(i)
        elif token.text in CLOSES:
            token.pair = stack.pop()
            tokens[token.pair].pair = i


def _level(source, token):
    if token.text in (",", ";", "return"):
        return 0
    before, after = source[token.start - 1:token.start], source[token.end:token.end + 1]
    return LEVELS.get(token.text) if before.isspace() and after.isspace() else None


def _lambda(tokens, at):
    """Whether the `{` at `at` opens the body of a lambda without a declared type."""
    before = tokens[at - 1]
    if before.text == ")":
        before = tokens[before.pair - 1]
    return before.text == "]"


def _function(source, head):
    """Name and result type of the function defined by a head such as `Status Banks::Back(...)`."""
    words = [t.text for t in head]
    if "namespace" in words or "(" not in words:
        return "", ""
    at = words.index("(")
    first = at - 3 if at > 2 and words[at - 2] == "::" else at - 1
    kind = [t for t in head[:first] if t.text not in BEFORE_TYPE]
    gives = ""
    if kind and kind[0].text == "auto":
        gives = "auto"
    elif kind and kind[-1].text == "&":
        gives = "&"
    elif kind and kind[0].text == "Result":
        gives = "".join(source[kind[0].start:kind[-1].end].split())
    name = words[at - 1] if re.match(r"\w", words[at - 1]) else "operator"
    return f"{words[at - 3]}::{name}" if first == at - 3 else name, gives


def left(tokens, at):
    """The index of the first token of the left operand of the operator at `at`.

    >>> t = tokens_of("x = a + f(b, c) * 2 - d < e;"); [t[left(t, i)].text for i in (3, 10, 12, 14)]
    ['a', 'f', 'a', 'a']
    """
    i = at - 1
    while i >= 0 and tokens[i].text not in OPENS and (tokens[i].level is None or tokens[i].level >= tokens[at].level):
        i = (tokens[i].pair if tokens[i].text in CLOSES else i) - 1
    return i + 1


def right(tokens, at):
    """The index after the last token of its right operand.

    >>> t = tokens_of("x = a + f(b, c) * 2 - d < e;"); [t[right(t, i)].text for i in (1, 3, 12, 14)]
    [';', '-', '<', ';']
    """
    least = tokens[at].level if tokens[at].level > 1 else 0  # an assignment's operand is all the rest
    i = at + 1
    while tokens[i].text not in CLOSES and (tokens[i].level is None or tokens[i].level > least):
        i = (tokens[i].pair if tokens[i].text in OPENS else i) + 1
    return i


def statement(tokens, at):
    """The index of the `;` that ends the statement at `at`, or None if it is not a single expression."""
    i = at
    while i < len(tokens) and tokens[i].text != ";":
        if tokens[i].text in CLOSES:
            return None
        i = (tokens[i].pair if tokens[i].text in OPENS else i) + 1
    return i if i < len(tokens) else None
