"""The Triton kernel compiled without a GPU: it fits, copies asynchronously, and reads no codes byte by byte."""

import pytest

from attn_tune.kernels.lang.triton.limits import MAX_SHARED_BYTES
from tests.kernels.scripts import built


@pytest.mark.slow
def test_untuned_launches_fit_and_are_pipelined():
    launches = built("tests.kernels.paged_decode.triton_builds")
    assert {launch["name"] for launch in launches} >= {"llama-80", "float8-90", "wide-90"}
    # Latents are the wide operand of Hopper's products: 576 / 16 of keys and, of values, 512 / 64 times 64 / 16.
    assert {launch["products"] for launch in launches if launch["name"] == "latent-90"} == {68, 0}
    # Of 576 columns, each group has 32 keys of logits, and 64 keys of its half of the output.
    assert {launch["products"] for launch in launches if launch["name"] == "hopper-90"} == {80, 0}
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
    assert len({launch["name"] for launch in walks}) == len({launch["name"] for launch in launches})
