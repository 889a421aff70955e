"""The digest of a kernel's source: its declared modules, in order, as syntax trees.

Comments and formatting do not count: a row measured before a comment was fixed stays verified.
"""

import ast
import functools
import importlib.metadata
import importlib.util
from pathlib import Path

from attn_tune.schema.digest import digest_text


@functools.cache
def source_hash(modules: tuple[str, ...], libraries: tuple[str, ...] = ()) -> str:
    """Digest of the modules' syntax trees, docstrings left out, and of the versions of installed ``libraries``.

    A library that is not installed has no version: a hash of its own, which no row that was measured has.

    Raises:
      ImportError: a named module does not exist.
    """
    parts = []
    for name in modules:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            raise ImportError(f"kernel source module {name!r} was not found")
        tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
        parts.append(f"{name}\n{ast.dump(_without_docstrings(tree))}")
    parts.extend(f"{name}=={_version(name)}" for name in libraries)
    return digest_text("\n".join(parts))


def _version(library: str) -> str:
    try:
        return importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _without_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                node.body = node.body[1:]
    return tree
