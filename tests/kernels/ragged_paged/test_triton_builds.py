"""The Triton kernels compiled without a GPU: it fits, and copies asynchronously."""

import pytest

from attn_tune.kernels.lang.triton.limits import MAX_SHARED_BYTES
from tests.kernels.ragged_paged.triton_builds import BUILDS, KEPT
from tests.kernels.scripts import builds, built


@pytest.mark.slow
@builds(KEPT, BUILDS)
def test_untuned_launches_fit_and_are_pipelined(names):
    launches = built("tests.kernels.ragged_paged.triton_builds", *names)
    assert {launch["name"] for launch in launches} == set(names)
    for launch in launches:
        # Tiles of 128 rows and four warps spill, as of 32 rows of latents, and are the fastest all the same (H200).
        assert launch["spills"] <= (448 if launch["name"] in ("mixed-90", "float8-90", "latent-90") else 64), launch
        assert launch["shared"] <= MAX_SHARED_BYTES[int(launch["name"].rpartition("-")[2])]
    walks = [launch for launch in launches if launch["shared"] > 8192]
    assert all(launch["copies"] for launch in walks)
    assert len({launch["name"] for launch in walks}) == len({launch["name"] for launch in launches})
    products = {launch["name"]: set() for launch in launches}
    for launch in launches:
        products[launch["name"]] |= set(launch["products"])
    # Queries that are codes are multiplied as they are, by groups of warps on Hopper, and no others.
    codes = {"queries-float8": {"e4m3.e4m3"}, "queries-mixed": {"e4m3.e4m3"}, "queries-int8": {"s8.s8"}}
    assert products == {name: codes.get(name.rpartition("-")[0], set()) for name in products}
    assert all(launch["groups"] for launch in walks if launch["name"].endswith("-90") and launch["products"])
