"""The Triton kernels compiled without a GPU: gathered tiles are copied ahead, and nothing is spilled."""

import pytest

from tests.kernels.scripts import built

LAUNCHES = {"forward_kernel", "dq_kernel", "dkv_kernel", "add_kernel"}


@pytest.mark.slow
def test_untuned_launches_copy_gathered_tiles_ahead_and_spill_nothing():
    launches = {
        launch["launch"]: launch for launch in built("tests.kernels.native_sparse_attention.triton_builds", "paper-90")
    }
    assert launches.keys() == LAUNCHES
    for name, launch in launches.items():
        assert launch["spills"] == 0, launch
        # Without a pipeline there is no asynchronous copy at all; sums are read once.
        assert launch["copies"] >= 16 or name == "add_kernel", launch
