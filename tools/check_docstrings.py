"""Refuse docstrings that begin with a relative clause: the first word must name or tell, so that readers can scan it.

    python tools/check_docstrings.py attn_tune tests benchmarks docs

Prints one line for each offence and exits with 1 if there are any.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

REFUSED = ("What", "How", "Why", "Which", "Where", "Who", "Whoever", "Whatever")


def offences(path: Path) -> Iterator[str]:
    """Yields ``path:line: text`` for each docstring that begins with a refused word."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node) or ""
            if text.partition(" ")[0] in REFUSED:
                line = node.body[0].lineno
                yield f"{path}:{line}: begin with a noun or an imperative: {text.splitlines()[0]}"


def main(folders: list[str]) -> int:
    """Checks every Python file below ``folders``."""
    files = sorted(path for folder in folders for path in Path(folder).rglob("*.py"))
    found = [offence for path in files for offence in offences(path)]
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
