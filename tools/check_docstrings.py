"""Refuse docstrings that begin with a relative clause, and idioms in docstrings and comments, so that readers can scan.

    python tools/check_docstrings.py attn_tune tests benchmarks docs

Prints one line for each offence and exits with 1 if there are any. Text between double backquotes may have any words.
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

REFUSED = ("What", "How", "Why", "Which", "Where", "Who", "Whoever", "Whatever")

IDIOMS = re.compile(
    r"\b(?:whatever|whoever|in\s+force|at\s+hand|anew|not\s+here|nobody|told|said|go(?:es)?\s+(?:on|by))\b", re.I
)

# Folders whose idioms are not looked for. Kernels: a change of their modules asks for a new table of sources.
EXEMPT = ("attn_tune/kernels/",)

type Text = tuple[int, str]


def docstrings(source: str) -> Iterator[Text]:
    """Yields the line and the text of each docstring."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text is not None:
                yield node.body[0].lineno, text


def comments(source: str) -> Iterator[Text]:
    """Yields the line and the text of each comment."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def offences(path: Path) -> Iterator[str]:
    """Yields ``path:line: text`` for each docstring that begins with a refused word, and for each idiom."""
    source = path.read_text(encoding="utf-8")
    found = list(docstrings(source))
    for line, text in found:
        if text.partition(" ")[0] in REFUSED:
            yield f"{path}:{line}: begin with a noun or an imperative: {text.splitlines()[0]}"
    if path.as_posix().startswith(EXEMPT):
        return
    for line, text in (*found, *comments(source)):
        for idiom in IDIOMS.findall(re.sub(r"``.*?``", "", text, flags=re.S)):
            yield f"{path}:{line}: use a plain word for {idiom!r}"


def main(folders: list[str]) -> int:
    """Checks every Python file below ``folders``."""
    files = sorted(path for folder in folders for path in Path(folder).rglob("*.py"))
    found = [offence for path in files for offence in offences(path)]
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
