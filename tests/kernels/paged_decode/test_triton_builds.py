"""The Triton kernel compiled without a GPU: it fits, copies asynchronously, and reads no codes byte by byte."""

import pytest

from attn_tune.kernels.lang.triton.limits import MAX_SHARED_BYTES
from tests.kernels.paged_decode.triton_builds import BUILDS, KEPT
from tests.kernels.scripts import builds, built


@pytest.mark.slow
@builds(KEPT, BUILDS)
def test_untuned_launches_fit_and_are_pipelined(names):
    launches = built("tests.kernels.paged_decode.triton_builds", *names)
    assert {launch["name"] for launch in launches} == set(names)
    # Latents are the wide operand of Hopper's products: 576 / 16 of keys and, of values, 512 / 64 times 64 / 16.
    assert {launch["products"] for launch in launches if launch["name"] == "latent-90"} == {68, 0}
    # A tile of logits has 36, and half of its output 4 in each group: one has its first and its last tile apart.
    assert {launch["products"] for launch in launches if launch["name"] == "hopper-90"} in (set(), {132, 0})
    for launch in launches:
        # Those of 16 rows of latents are outside the loop over keys; of 64 rows half of the registers are accumulators.
        most = {"latent-90": 128, "latent-many-90": 1024, "hopper-90": 256}
        assert launch["spills"] <= most.get(launch["name"], 16), launch
        assert launch["shared"] <= MAX_SHARED_BYTES[int(launch["name"].rpartition("-")[2])]
        # Through shared memory byte by byte a cache of codes was slower than one of bfloat16 (H200).
        # (A program whose warps have several tasks reads the number of its task once, which is a byte.)
        assert launch["bytewise"] <= launch["name"].startswith("hopper"), launch
        assert launch["waits"] == launch["clustered"], launch
    walks = [launch for launch in launches if launch["shared"] > 8192]
    assert all(launch["copies"] for launch in walks)
    assert all(launch["products"] for launch in walks if launch["name"].startswith("hopper"))
    assert len({launch["name"] for launch in walks}) == len({launch["name"] for launch in launches})
