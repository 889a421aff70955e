"""`modules_of`: the modules whose source decides the code of a kernel, found by walking its imports."""

import ast
import functools
import importlib.util
from fnmatch import fnmatch
from pathlib import Path

from attn_tune.kernels.spec import KernelSpec

# Modules that a kernel may import and that are not hashed, with the reason why a change there leaves old timings true.
# Not walked any further.
EXEMPT = {
    "attn_tune.schema.*": "records, and errors with their words",
    "attn_tune.kernels.*.problem": "the op's contract, whose version is in every signature",
    "attn_tune.kernels.*.operands": "the op's contract too",
    "attn_tune.kernels.*.config": "names and bounds of knobs; a row holds their values",
    "attn_tune.kernels._common.triton_interpret": "runs in place of a GPU, never on one",
    "attn_tune.kernels._common.triton_limits": "refuses what does not fit, and changes nothing that does",
    "attn_tune.kernels._common.triton_target": "which GPU to compile for; a row holds the device",
}


@functools.cache
def _closure_of_calls(calls: tuple[str, ...]) -> tuple[str, ...]:
    """The modules of the paths ``calls`` and all that they import of their own packages, sorted; without exempt ones.

    Raises:
      ImportError: a module does not exist, or has a relative import.
    """
    starts = {call.partition(":")[0] for call in calls}
    packages = tuple(sorted({name.partition(".")[0] for name in starts}))
    return tuple(name for name in sorted(closure(starts, packages)) if not exemption(name))


def modules_of(spec: KernelSpec) -> tuple[str, ...]:
    """The modules of all directions of a kernel."""
    return _closure_of_calls(tuple(sorted(search.call for search in spec.searches.values())))


def closure(modules: set[str], packages: tuple[str, ...] = ("attn_tune",)) -> set[str]:
    """The modules and all that they import of ``packages``, directly or not, up to what is exempt."""
    found: set[str] = set()
    left = list(modules)
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            left.extend(() if exemption(name) else imports_of(name, packages))
    return found


def exemption(name: str) -> str | None:
    """The reason why a module is exempt, or None."""
    return next((why for pattern, why in EXEMPT.items() if fnmatch(name, pattern)), None)


@functools.cache
def imports_of(name: str, packages: tuple[str, ...] = ("attn_tune",)) -> frozenset[str]:
    """The modules of ``packages`` that one module imports anywhere, inside functions too.

    Raises:
      ImportError: the module does not exist, or has a relative import, which is not read.
    """
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise ImportError(f"kernel source module {name!r} was not found")
    names: set[str] = set()
    for node in ast.walk(ast.parse(Path(spec.origin).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            if node.level or node.module is None:
                raise ImportError(f"kernel source module {name!r} has a relative import")
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return frozenset(n for n in names if n.partition(".")[0] in packages and _is_module(n))


def _is_module(name: str) -> bool:
    """Whether the name is a module's, not that of a package or of something in a module."""
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError:  # what would be its package is a module
        return False
    return spec is not None and spec.submodule_search_locations is None
