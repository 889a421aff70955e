"""The Triton kernel compiled without a GPU: no spills, and every part read 16 bytes at a time."""

import pytest

from tests.kernels.scripts import built


@pytest.mark.slow
def test_untuned_launches_spill_nothing_and_read_sixteen_bytes_at_a_time():
    launches = {launch.pop("name"): launch for launch in built("tests.kernels.merge_attention.triton_builds")}
    assert launches.keys() >= {"llama-80", "llama-90", "one-90", "four-90", "float32-90"}
    for name, launch in launches.items():
        assert launch["spills"] == 0, launch
        # A part has one such load at least.
        assert launch["wide_loads"] >= (4 if name == "four-90" else 2), launch
