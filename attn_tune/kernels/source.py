"""The digest of a kernel's source: its declared modules, in order, as canonical syntax trees.

Comments, docstrings and formatting do not count: a row measured before a comment was fixed stays verified. Nor does
the Python that computes the digest.
"""

import ast
import functools
import importlib.metadata
import importlib.util
from pathlib import Path
from typing import Any

from attn_tune.schema.digest import digest_text


@functools.cache
def source_hash(modules: tuple[str, ...], libraries: tuple[str, ...] = ()) -> str:
    """Digest of the modules' names and syntax, and of the versions of installed ``libraries``.

    A library that is not installed has no version: a hash of its own, which no row that was measured has.

    Raises:
      ImportError: a named module does not exist.
    """
    parts = []
    for name in modules:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            raise ImportError(f"kernel source module {name!r} was not found")
        parts.append(f"{name}\n{canonical_source(Path(spec.origin).read_text(encoding='utf-8'))}")
    parts.extend(f"{name}=={_version(name)}" for name in libraries)
    return digest_text("\n".join(parts))


def canonical_source(source: str) -> str:
    """The syntax of a module as one line of ASCII, the same on every Python from 3.12 on.

    ``ast.dump`` will not do: 3.13 leaves out empty lists and fields that are None, and later versions add fields. Here
    a node is its class and those fields, by name, that say something. Texts are in ASCII because ``repr`` escapes what
    the interpreter's version of Unicode does not know.

    Raises:
      SyntaxError: ``source`` is no Python.
    """
    return _text(ast.parse(source))


def _text(value: Any) -> str:
    if isinstance(value, list):
        return f"[{','.join(map(_text, value))}]"
    if isinstance(value, ast.Constant):
        # Without its ``kind``: u"" and "" are one constant.
        return f"{type(value.value).__name__}:{value.value!a}"
    if not isinstance(value, ast.AST):
        return ascii(value)
    fields: dict[str, Any] = {name: getattr(value, name, None) for name in value._fields}
    if _has_docstring(value):
        fields["body"] = fields["body"][1:]
    if isinstance(value, ast.JoinedStr):
        # Some Pythons end the format of f"{x:{width}}" with an empty text.
        fields["values"] = [part for part in value.values if not _is_empty_text(part)]
    said = (
        f"{name}={_text(field)}"
        for name, field in sorted(fields.items())
        if field is not None and field != []
    )
    return f"{type(value).__name__}({','.join(said)})"


def _has_docstring(node: ast.AST) -> bool:
    if not isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
        return False
    return ast.get_docstring(node, clean=False) is not None


def _is_empty_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value == ""


def _version(library: str) -> str:
    try:
        return importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return ""
