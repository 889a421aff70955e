"""Ops and kernels know nothing of the lookup: they import nothing of ``runtime``."""

import ast
from pathlib import Path

import attn_tune.kernels

ROOM = Path(attn_tune.kernels.__file__).parent


def imported(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_folders_of_ops_and_kernels_import_no_lookup():
    files = [path for path in ROOM.rglob("*.py") if path.parent != ROOM]
    assert len(files) > 50
    found = {
        (str(path.relative_to(ROOM)), name)
        for path in files
        for name in imported(path)
        if name.startswith("attn_tune.runtime.")
    }
    assert found == set()
