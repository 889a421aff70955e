"""The ``modules`` of a kernel name everything whose change can change what runs: nothing that it imports is missing."""

import ast
import importlib.util
from fnmatch import fnmatch
from pathlib import Path

import pytest

from attn_tune.kernels.registry import kernels

KERNELS = {name: spec for name, spec in kernels().items() if not spec.entry_point}

# What a kernel may import without naming it, and why a change there leaves old timings true. Not walked any further.
EXEMPT = {
    "attn_tune.schema.*": "records, and errors with their words",
    "attn_tune.kernels.*.problem": "the op's contract, whose version is in every signature",
    "attn_tune.kernels.*.operands": "the op's contract too",
    "attn_tune.kernels.*.config": "names and bounds of knobs; a row holds their values",
    "attn_tune.kernels.knobs": "checks of knobs; a row holds their values",
    "attn_tune.kernels.lang.attention": "names of a problem's fields",
    "attn_tune.kernels.lang.triton.interpret": "runs in place of a GPU, never on one",
    "attn_tune.kernels.lang.triton.limits": "refuses what does not fit, and changes nothing that does",
    "attn_tune.kernels.lang.triton.target": "which GPU to compile for; a row holds the device",
}


@pytest.mark.parametrize("spec", KERNELS.values(), ids=KERNELS)
def test_every_module_that_decides_the_code_is_hashed(spec):
    calls = {search.call.partition(":")[0] for search in spec.searches.values()}
    reached = closure(calls)
    named = set(spec.modules)
    missing = {name for name in reached - named if reason(name) is None}
    assert not missing, f"add them to the modules of {spec.id}, or to EXEMPT with the reason"
    assert named <= reached, (
        "a module that the kernel does not use makes its timings stale for nothing"
    )


def test_the_walk_reaches_what_is_imported_two_steps_away_and_inside_functions():
    reached = closure({"attn_tune.kernels.flash_attention.triton.forward"})
    # forward -> call -> compile -> compiled
    assert "attn_tune.kernels.lang.triton.compiled" in reached
    assert "attn_tune.kernels.source" in imports_of("attn_tune.kernels.spec")


def test_every_exemption_is_needed():
    reached = set().union(*(closure(spec.modules) for spec in KERNELS.values()))
    unused = [pattern for pattern in EXEMPT if not any(fnmatch(name, pattern) for name in reached)]
    assert not unused


def closure(modules):
    """The modules and all that they import of this package, directly or not, up to what is exempt."""
    found, left = set(), list(modules)
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            left.extend(() if reason(name) else imports_of(name))
    return found


def reason(name):
    """Why the module is exempt, or None."""
    return next((why for pattern, why in EXEMPT.items() if fnmatch(name, pattern)), None)


def imports_of(name):
    """The modules of this package that are imported anywhere in one of them, inside functions too."""
    tree = ast.parse(Path(importlib.util.find_spec(name).origin).read_text(encoding="utf-8"))
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{name} has a relative import, which this walk does not read"
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return {n for n in names if n.startswith("attn_tune.") and is_module(n)}


def is_module(name):
    """Whether the name is a module's, not that of a package or of something in a module."""
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError:  # what would be its package is a module
        return False
    return spec is not None and spec.submodule_search_locations is None
