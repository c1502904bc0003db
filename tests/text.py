#!/usr/bin/env python3
"""Checks text for people: idioms, also in code comments, the length of sentences and lines, and links between Markdown files.

Prints each finding as `file:line: what`, and exits 1 if there is one. External links are not fetched.
"""

import ast
import pathlib
import posixpath
import re
import subprocess
import sys
from urllib.parse import unquote

ROOT = pathlib.Path(__file__).resolve().parent.parent
MAX_IDIOMS = 10  # in all documents and help texts together
MAX_COMMENT_IDIOMS = 60  # in all code comments together; most of them are fine where they are
MAX_SENTENCE = 35  # words
MAX_LINE = 160  # characters
MAX_README_LINES, MAX_README_WORDS = 120, 900

CLI = r"(?:operator/(?:cmd|internal/plancli|internal/simcli)|e2e/demo/tangram-demo)/(?!.*_test\.go$).*\.go$|agent/vllm/(?!tests/).*\.py$"
IDIOM_FILES = re.compile(r"(?!CHANGELOG)[^/]+\.md$|.*/README\.md$|docs/.*\.md$|charts/.*\.(?:yaml|md|txt|json)$|api/.*types\.go$|examples/.*\.\w+$|" + CLI)
SENTENCE_FILES = re.compile(r"(?!CHANGELOG)[^/]+\.md$|docs/.*\.md$|.*/README\.md$|charts/tangram/(?:values\.yaml|templates/NOTES\.txt)$|"
                            r"api/v1alpha2/.*types\.go$|" + CLI)
IDIOMS = [re.compile(pattern.replace(" ", r"\s+")) for pattern in (
    r"\b[Ww]ho (?:hangs|waits|dies|comes|leaves|joins|asks|has|is|was|reads|may|does|knows|brings|holds|looks|stands)\b",
    r"\b[Nn]obody\b", r"\banybody\b", r"\b(?:is|are|was|were) told\b", r"\btells? (?:of|who|what|how|that|the|its|it|no|them)\b",
    r"\bin force\b", r"\bstands? still\b", r"\bgoes on\b", r"\bgo on\b", r"\b[Ww]hat (?:is|was|comes|goes|lies|serves|follows)\b(?=[^?]*$)",
    r"\bas wanted\b", r"\bis none\b", r"\banew\b", r"\bso long\b", r"\bbeside it\b", r"\blet go\b",
    r"\bas far as\b", r"\bof its own\b", r"\bthereof\b")]
COMMENT_FILES = re.compile(r"(?!tests/text\.py$)(?!.*(?:\.pb\.|zz_generated)).*\.(?:go|cc|h|cu|py)$")
COMMENT = re.compile(r"(?:^|\s)(?://|#)\s(.*)")
CODE_SPAN = re.compile(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)", re.S)
TARGET = re.compile(r"""\]\(\s*<?((?:[^()\s<>]|\([^()\s]*\))*)>?(?:\s+["'][^"']*["'])?\s*\)""")
ITEM = re.compile(r"(?:[-*+]|\d{1,9}[.)])\s+")
HEADING = re.compile(r"#{1,6}\s+(.*?)(?:\s+#+)?\s*$")
ABBREVIATION = re.compile(r"(?i)(?:^|[\s(])(?:e\.g|i\.e|vs|cf|approx|incl|resp|al)\.$")
SENTENCE_END = re.compile(r"(?<=[^\s.])[.!?]+[\"')\]*_]*(?=\s|$)")
GO_TOKEN = re.compile(r"//[^\n]*|/\*.*?\*/|'(?:\\.|[^'\\\n])+'|\"(?:\\.|[^\"\\\n])*\"|`[^`]*`", re.S)
GO_HELP = re.compile(r"\b(?:Short|Long|Usage):|Var[PF]?\(")


def blocks(markdown):
    """(kind, line, text) of each heading, paragraph, list item ("text") and table cell. Code, rules and blank lines are left out.

    >>> blocks("# A\\none\\ntwo\\n- b\\n\\n      c\\n\\n  d\\n\\n| e | `f\\\\|g` |\\n| - | - |\\n\\n~~~\\nh\\n~~~\\n\\n    i\\n")
    [('heading', 1, 'A'), ('text', 2, 'one\\ntwo'), ('text', 4, 'b'), ('text', 8, 'd'), ('cell', 10, 'e'), ('cell', 10, '`f|g`')]
    """
    out, fence, indents, state = [], None, [0], "blank"
    for number, line in enumerate(markdown.splitlines(), 1):
        line = re.sub(r"^ {0,3}(?:> ?)+", "", line.expandtabs(4))
        body = line.strip()
        indent = len(line) - len(line.lstrip())
        opened = re.match(r"(`{3,}|~{3,})", body)
        if fence or not body:
            fence = None if fence and body.startswith(fence) and not body.strip(fence[0]) else fence
            state = "blank"
            continue
        item = ITEM.match(body)
        while indent < indents[-1] and (item or state == "blank"):
            indents.pop()
        if state == "blank" and indent >= indents[-1] + 4:
            continue
        before, state = state, "blank"
        if opened:
            fence = opened[1]
        elif HEADING.match(body):
            out.append(("heading", number, HEADING.match(body)[1]))
        elif body.startswith("|"):
            cells = [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", body.strip("|"))]
            out += [("cell", number, cell) for cell in cells if cell.strip(":- ")]
        elif not re.fullmatch(r"(?:[-*_]\s*){3,}", body):
            state = "text"
            if item:
                indents.append(indent + item.end())
                body = body[item.end():]
            if before == "text" and not item:
                out[-1] = ("text", out[-1][1], out[-1][2] + "\n" + body)
            else:
                out.append(("text", number, body))
    return out


def plain(text):
    """Markdown without markup and tags. A code span is one word, a link is its text; the number of lines stays.

    >>> plain("Run `make\\ntry`, [see `x y`](b.md#c) <br> {{ .Values.a }}")
    'Run code\\n, see code  code'
    """
    text = CODE_SPAN.sub(lambda m: "code" + "\n" * m[2].count("\n"), text)
    text = re.sub(r"\{\{.*?\}\}", "code", re.sub(r"</?[a-zA-Z!][^<>]*>", "", text))
    return TARGET.sub("]", text).replace("![", "").replace("[", "").replace("]", "")


def sentences(text):
    """(offset of the line, sentence) of one block of plain text.

    >>> sentences("One, e.g. a\\nlist vs. 1.5 ... more. **Two.** `Three`? four...")
    [(0, 'One, e.g. a\\nlist vs. 1.5 ... more.'), (1, '**Two.**'), (1, '`Three`?'), (1, 'four...')]
    """
    out, start = [], 0
    for end in [m.end() for m in SENTENCE_END.finditer(text)] + [len(text)]:
        sentence = text[start:end]
        if sentence.strip() and (end == len(text) or not ABBREVIATION.search(sentence)):
            out.append((text.count("\n", 0, end - len(sentence.lstrip())), sentence.strip()))
            start = end
    return out


def words(sentence):
    """The words of a sentence.

    >>> words("A -> b/c, it's 5 %.")
    ['A', 'b/c,', "it's", '5']
    """
    return [word for word in sentence.split() if any(c.isalnum() for c in word)]


def idioms(text):
    """(offset of the line, phrase) of each idiom in a sentence. A pattern counts once.

    >>> idioms("The rank is\\ntold who leaves, nobody waits anew, and nobody asks.")
    [(1, 'who leaves'), (1, 'nobody'), (0, 'is told'), (1, 'anew')]
    >>> idioms("What is a rank?"), idioms("Print what is left."), idioms("A report tells us who they are.")
    ([], [(0, 'what is')], [])
    """
    found = [m for m in (rx.search(text) for rx in IDIOMS) if m]
    return [(text.count("\n", 0, m.start()), " ".join(m[0].split())) for m in found]


def comments(source, mark):
    """Full-line comments as Markdown, each on its line; of Go's markers, only the message.

    >>> comments("// A is\\n// b.\\n// +x:rule=1,message=\\"C.\\"\\n// +y\\nA int // d\\n", "//").splitlines()
    ['A is', 'b.', '# C.', '']
    """
    lines = [re.match(rf"\s*{mark} ?(.*)", line) for line in source.splitlines()]
    lines = [line[1] if line else "" for line in lines]
    return "\n".join(re.sub(r'^\+(?:.*message="([^"]*)")?.*', lambda m: "# " + m[1] if m[1] else "", line) for line in lines)


def go_strings(source):
    """(kind, line, value) of strings with a space: "help" of commands and flags, else "message". A sum of strings is one.

    >>> go_strings('x("a b" +\\n  "c\\\\n" + f() + "d e",\\nLong: `g\\nh`) // "i j"')
    [('message', 1, 'a bc\\ncoded e'), ('help', 3, 'g\\nh')]
    """
    out, after = [], 0
    for m in GO_TOKEN.finditer(source):
        if m[0][0] in "/'":
            continue
        value = m[0][1:-1] if m[0][0] == "`" else re.sub(r"\\(.)", lambda e: {"n": "\n", "t": "\t"}.get(e[1], e[1]), m[0][1:-1])
        between = source[after:m.start()]
        if out and re.fullmatch(r"\s*\+([^,;{}\n]*\+)?\s*", between):
            out[-1] = (*out[-1][:2], out[-1][2] + ("code" if between.count("+") > 1 else "") + value)
        else:
            kind = "help" if GO_HELP.search(source, source.rfind("\n", 0, m.start()) + 1, m.start()) else "message"
            out.append((kind, source.count("\n", 0, m.start()) + 1, value))
        after = m.end()
    return [string for string in out if re.search(r"\s", string[2])]


def python_help(source):
    """("help", line, value) of strings with a space in functions that add arguments.

    >>> python_help('def f(p):\\n    p.add_argument("--a", help="b c")\\ndef g(): print("d e")')
    [('help', 2, 'b c')]
    """
    adders = [f for f in ast.walk(ast.parse(source)) if isinstance(f, ast.FunctionDef) and "add_argument" in ast.unparse(f)]
    strings = [s for f in adders for s in ast.walk(f) if isinstance(s, ast.Constant) and isinstance(s.value, str)]
    return sorted({("help", s.lineno, s.value) for s in strings if " " in s.value})


def texts(path, source):
    """(kind, line, text) of what users read in a file.

    >>> texts("a.yaml", "# A\\n#  b.\\nc: d e\\n")
    [('text', 1, 'A\\nb.'), ('line', 3, 'c: d e')]
    """
    if path.endswith(".md"):
        return blocks(source)
    if path.endswith(".txt"):
        return blocks(re.sub(r"(?m)^[ \t]{2,}.*$|^\{\{-.*\}\}$", "", source))  # without commands and actions
    if path.endswith("types.go"):
        return blocks(comments(source, "//"))
    if path.endswith((".go", ".py")):
        strings = go_strings(source) if path.endswith(".go") else python_help(source)
        strings = [(kind, line, re.sub(r"(?m)^[ \t]{2,}.*$", "", value)) for kind, line, value in strings]  # without examples
        return [(kind, line, text.replace("\n", " ")) for kind, line, value in strings for _, _, text in blocks(value)]
    lines = [("line", number, line) for number, line in enumerate(source.splitlines(), 1)]
    if path.endswith((".yaml", ".yml")):
        return blocks(comments(source, "#")) + [line for line in lines if not line[2].lstrip().startswith("#")]
    return lines


def find_idioms(path, source):
    """Idioms outside of code spans and code blocks.

    >>> find_idioms("a.md", "`nobody` is\\nfree. What is it? But\\nnobody is told.\\n\\n    anew")
    ['a.md:3: idiom "nobody"', 'a.md:3: idiom "is told"']
    >>> find_idioms("a.go", 's := "as wanted, or\\\\nanew" // nobody')
    ['a.go:1: idiom "as wanted"', 'a.go:1: idiom "anew"']
    """
    found = [(line + at, sentence) for _, line, text in texts(path, source) for at, sentence in sentences(plain(text))]
    return [f'{path}:{line + at}: idiom "{phrase}"' for line, sentence in found for at, phrase in idioms(sentence)]


def find_long(path, source):
    """Sentences and lines that are too long.

    >>> find_long("a.md", "Short.\\n" + "word\\n" * 36), find_long("a.md", "word " * 18 + "\\n\\n- " + "word " * 18)
    (['a.md:2: a sentence of 36 words: "word word word word word word ..."'], [])
    >>> find_long("a.md", "x" * 161), find_long("a.md", "[a](" + "x" * 161 + ")\\n\\n    " + "x" * 161)
    (['a.md:1: a line of 161 characters'], [])
    >>> find_long("README.md", "word.\\n" * 121)
    ['README.md:1: 121 lines, at most 120']
    """
    out, lines = [], source.splitlines()
    for kind, line, text in texts(path, source):
        for at, sentence in sentences(plain(text)):
            if kind != "message" and (count := len(words(sentence))) > MAX_SENTENCE:
                out.append(f'{path}:{line + at}: a sentence of {count} words: "{" ".join(words(sentence)[:6])} ..."')
        if path.endswith(".md") and kind != "cell":
            for number in range(line, line + text.count("\n") + 1):
                if (length := len(TARGET.sub("]", lines[number - 1]))) > MAX_LINE:
                    out.append(f"{path}:{number}: a line of {length} characters")
    for what, most, count in ("lines", MAX_README_LINES, len(lines)), ("words", MAX_README_WORDS, len(source.split())):
        if path == "README.md" and count > most:
            out.append(f"{path}:1: {count} {what}, at most {most}")
    return out


def find_comment_idioms(path, source):
    """Idioms in the comments of a program, one finding per line.

    >>> find_comment_idioms("a.go", "x := nobody // nobody\\n// Somebody.\\n")
    ['a.go:1: idiom "nobody"']
    """
    out = []
    for number, line in enumerate(source.splitlines(), 1):
        comment = COMMENT.search(line)
        if comment and (found := next((m for m in (idiom.search(comment[1]) for idiom in IDIOMS) if m), None)):
            out.append(f'{path}:{number}: idiom "{found[0]}"')
    return out


def anchors(markdown):
    """Targets of `#...` in a file, as GitHub makes them.

    >>> sorted(anchors("# A `b_c`: d & [e](f)!\\n## Twice\\n## Twice\\n## Twice-1\\n<a id='own'></a>\\n```\\n# no\\n```"))
    ['a-b_c-d--e', 'own', 'twice', 'twice-1', 'twice-1-1']
    """
    out, seen = set(), {}
    for kind, _, text in blocks(markdown):
        out.update(re.findall(r"""<\w+\s[^<>]*?\b(?:id|name)=["']([^"']+)["']""", CODE_SPAN.sub("", text)))
        if kind == "heading":
            text = re.sub(r"</?[a-zA-Z][^<>]*>", "", TARGET.sub("]", text))
            slug = first = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
            while slug in seen:
                seen[first] += 1
                slug = f"{first}-{seen[first]}"
            seen[slug] = 0
    return out | set(seen)


def links(markdown):
    """(line, target) of links, images, definitions and HTML attributes outside of code.

    >>> links("[![a](b.svg)](c.md#d \\"e\\")\\n`[f](g)` <img src='h'>\\n\\n[i]: j\\n\\n    [k](l)")
    [(1, 'b.svg'), (1, 'c.md#d'), (2, 'h'), (4, 'j')]
    """
    out = []
    for _, line, text in blocks(markdown):
        text = CODE_SPAN.sub(lambda m: "code" + "\n" * m[2].count("\n"), text)
        for m in re.finditer(TARGET.pattern + r"""|(?m:^)\[[^\]\n]+\]:\s+<?([^\s<>]+)|\b(?:src|href)=["']([^"']*)["']""", text):
            out.append((line + text.count("\n", 0, m.start()), next((g for g in m.groups() if g is not None), "")))
    return out


def find_broken(path, source, files, read):
    """Links that lead nowhere. `read` gives the text of a file.

    >>> repository = {"docs/a.md": "# Top", "b/c.md": "# In c", "d.svg": ""}
    >>> find = lambda link: find_broken("docs/a.md", "# Top\\n[x](" + link + ")", set(repository), repository.get)
    >>> [find(link) for link in ("#top", "../b/c.md#in-c", "../b", "/d.svg", "https://a.org/b_(c)")]
    [[], [], [], [], []]
    >>> find("#no") + find("../b/c.md#In-c") + find("c.md") + find("../../e.md")
    ['docs/a.md:2: no heading: #no', 'docs/a.md:2: no heading: ../b/c.md#In-c', 'docs/a.md:2: no file: c.md', 'docs/a.md:2: no file: ../../e.md']
    >>> find("http://") + find("ftp://a.org") + find("../d.svg#x") + find("")
    ['docs/a.md:2: bad URL: http://', 'docs/a.md:2: bad URL: ftp://a.org', 'docs/a.md:2: no heading: ../d.svg#x', 'docs/a.md:2: empty link: ']
    """
    out = []
    for line, link in links(source):
        name, _, anchor = unquote(link).partition("#")
        name = posixpath.normpath(posixpath.join("/", posixpath.dirname(path), name))[1:] if name else path
        what = None
        if not link:
            what = "empty link"
        elif re.match(r"[\w+.-]+:|//", link):
            what = None if re.fullmatch(r"https?://[\w.-]+(?::\d+)?(?:[/?#]\S*)?", link) else "bad URL"
        elif name and name not in files and not any(file.startswith(name + "/") for file in files):
            what = "no file"
        elif anchor and not (name.endswith(".md") and anchor in anchors(read(name))):
            what = None if name in files and re.fullmatch(r"L\d+(?:-L\d+)?", anchor) else "no heading"
        if what:
            out.append(f"{path}:{line}: {what}: {link}")
    return out


def main():
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    files = {path for path in listed.splitlines() if (ROOT / path).is_file()}

    def read(path):
        return (ROOT / path).read_text(errors="replace")

    odd, comments, wrong = [], [], []
    for path in sorted(files):
        if IDIOM_FILES.match(path):
            odd += find_idioms(path, read(path))
        if COMMENT_FILES.match(path):
            comments += find_comment_idioms(path, read(path))
        if SENTENCE_FILES.match(path):
            wrong += find_long(path, read(path))
        if path.endswith(".md"):
            wrong += find_broken(path, read(path), files, read)
    if len(odd) > MAX_IDIOMS:
        wrong += odd + [f"tests/text.py:1: {len(odd)} idioms in all, at most {MAX_IDIOMS}"]
    if len(comments) > MAX_COMMENT_IDIOMS:
        wrong += comments + [f"tests/text.py:1: {len(comments)} idioms in comments, at most {MAX_COMMENT_IDIOMS}"]
    print(*wrong, sep="\n", end="\n" if wrong else "")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
