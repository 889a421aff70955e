"""The ``modules`` of a kernel name everything whose change can change what runs: nothing that it imports is missing."""

from fnmatch import fnmatch

import pytest

from attn_tune.kernels.closure import EXEMPT, closure, exemption, imports_of, modules_of
from attn_tune.kernels.registry import kernels

KERNELS = {name: spec for name, spec in kernels().items() if not spec.entry_point}


@pytest.mark.parametrize("spec", KERNELS.values(), ids=KERNELS)
def test_every_module_that_decides_the_code_is_hashed(spec):
    calls = {search.call.partition(":")[0] for search in spec.searches.values()}
    reached = closure(calls)
    named = set(spec.modules)
    missing = {name for name in reached - named if exemption(name) is None}
    assert not missing, f"add them to the modules of {spec.id}, or to EXEMPT with the reason"
    assert named <= reached, (
        "a module that the kernel does not use makes its timings stale for nothing"
    )


def test_the_walk_reaches_what_is_imported_two_steps_away_and_inside_functions():
    reached = closure({"attn_tune.kernels.flash_attention.triton.forward"})
    # forward -> triton_call -> triton_compile -> triton_compiled
    assert "attn_tune.kernels._common.triton_compiled" in reached
    assert "attn_tune.kernels.source" in imports_of("attn_tune.kernels.spec")


def test_every_exemption_is_needed():
    reached = set().union(*(closure(spec.modules) for spec in KERNELS.values()))
    unused = [pattern for pattern in EXEMPT if not any(fnmatch(name, pattern) for name in reached)]
    assert not unused


@pytest.mark.parametrize("spec", KERNELS.values(), ids=KERNELS)
def test_the_computed_modules_are_those_that_the_kernel_names(spec):
    assert set(modules_of(spec)) == {n for n in spec.modules if exemption(n) is None}
