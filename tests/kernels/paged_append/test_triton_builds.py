"""The Triton kernel compiled without a GPU: no spills, and stores of several elements."""

import pytest

from tests.kernels.scripts import built


@pytest.mark.slow
def test_untuned_launches_spill_nothing_and_store_several_elements_at_a_time():
    launches = built("tests.kernels.paged_append.triton_builds")
    assert {launch["name"] for launch in launches} >= {"llama-90", "ragged-90", "float8-90", "int8-80"}
    for launch in launches:
        assert launch["spills"] == 0, launch
        assert launch["narrow"] == 0, launch
