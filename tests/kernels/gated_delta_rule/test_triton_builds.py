"""The Triton kernels compiled without a GPU: launches spill little, and walks copy ahead and use tensor cores."""

import pytest

from tests.kernels.gated_delta_rule.triton_builds import BUILDS, KEPT
from tests.kernels.scripts import builds, built


@pytest.mark.slow
@builds(KEPT, BUILDS)
def test_untuned_walks_and_gradients_spill_little_and_walks_copy_ahead(names):
    launches = {(x["name"], x["launch"]): x for x in built("tests.kernels.gated_delta_rule.triton_builds", *names)}
    assert {name for name, _ in launches} == set(names)
    for name in ("forward-90", "backward-90"):
        walks = [x for (of, _), x in launches.items() if of == name and x["launch"] in _WALKS]
        assert walks
        for walk in walks:
            assert walk["spills"] == 0, walk
            assert walk["copies"] > 0, walk
            assert walk["wgmma"] > 0, walk
    # Capped on purpose (``space.py``): a few registers are spilled.
    assert launches["forward-90", "prepare_kernel"]["spills"] <= 192
    assert launches["backward-90", "prepare_kernel"]["spills"] == 0
    for name in ("pairs_kernel", "queries_kernel", "keys_kernel"):
        assert launches["backward-90", name]["spills"] <= 64
    decode = launches["decode-90", "steps_kernel"]
    assert decode["spills"] == 0
    # Rows of a state are read 16 bytes a thread.
    assert decode["wide_loads"] > 0


_WALKS = ("scan_kernel", "walk_kernel")
