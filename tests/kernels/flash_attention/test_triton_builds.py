"""The Triton kernels compile for absent GPUs, fit them, and use what makes them fast."""

import json
import os
import subprocess
import sys

import pytest

from attn_tune.kernels.lang.triton.compile import MAX_SHARED_BYTES
from tests.kernels.flash_attention.triton_builds import BUILDS, VARIANTS

PROCESSES = 2
MOST_SPILLED_BYTES = 200
TESTED = [build for build in BUILDS if build.name not in VARIANTS]
EACH = [pytest.param(build, c, id=f"{build.name}-{c}") for build in TESTED for c in build.capabilities]
UNTUNED = [each for each in EACH if each.values[0].rank == 0 and each.values[0].part != "dbias"]


@pytest.fixture(scope="module")
def results():
    """Each launch's line of ``triton_builds``, by its name and architecture."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    names = [f"{build.name}:{c}" for build in TESTED for c in build.capabilities]
    command = [sys.executable, "-m", "tests.kernels.flash_attention.triton_builds"]
    workers = [
        subprocess.Popen(
            [*command, *names[i::PROCESSES]],
            env=environment | {"JAX_PLATFORMS": "cpu"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for i in range(PROCESSES)
    ]
    lines = {}
    for worker in workers:
        out, err = worker.communicate(timeout=1800)
        assert worker.returncode == 0, err[-2000:]
        lines |= {(line["build"], line["capability"]): line for line in map(json.loads, out.splitlines())}
    return lines


@pytest.mark.slow
@pytest.mark.parametrize(("build", "capability"), EACH)
def test_compiles_and_fits(build, capability, results):
    line = results[build.name, capability]
    assert "raised" not in line, line["raised"]
    assert line["least_shared_bytes"] <= line["shared_bytes"] <= MAX_SHARED_BYTES[capability], line


@pytest.mark.slow
@pytest.mark.parametrize(("build", "capability"), UNTUNED)
def test_untuned_choices_hardly_spill(build, capability, results):
    line = results[build.name, capability]
    assert line["spill_bytes"] <= MOST_SPILLED_BYTES, line


@pytest.mark.slow
def test_each_part_is_the_launches_it_should_be(results):
    fused = ["fused_kernel"]
    for name, launches in {
        "fused-h128": fused,
        "fused-everything": [*fused, "dbias_kernel"],
        "split-h128": ["split_kernel", "combine_kernel"],
        "dkv": ["dkv_kernel"],
    }.items():
        assert results[name, 90]["launches"] == launches


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fused-h64", "fused-h128", "fused-h256"])
def test_the_fused_backward_neither_spills_nor_adds_one_by_one_on_hopper(name, results):
    line = results[name, 90]
    assert line["spill_bytes"] == 0
    assert line["wgmma"] > 0
    assert line["added_4_at_a_time"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fwd", "dq", "dkv", "fwd-h256", "fwd-mla", "fwd-everything", "split-h128"])
def test_hopper_multiplies_by_warpgroups_and_copies_16_bytes_at_a_time(name, results):
    line = results[name, 90]
    assert line["wgmma"] > 0
    assert line["cp_async_16"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fwd-everything", "dbias-everything", "fused-everything", "hopper-everything"])
def test_four_weights_share_a_dropout_hash_on_hopper(name, results):
    """A quarter, and what rows and seeds take; the keys are rows of the tile in ``fused`` and columns elsewhere."""
    line = results[name, 90]
    assert line["dropped_weights"] > 0
    assert line["dropout_hashes"] <= 0.75 * line["dropped_weights"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hopper-h128", "hopper-h256", "hopper-candidate"])
def test_the_forward_for_hopper_has_its_softmax_beside_its_products(name, results):
    """64 logits a thread at 128 keys a tile, 32 at 64: all of them before the second product is waited for."""
    line = results[name, 90]
    assert line["copies_by_descriptor"] > 0
    assert line["exponentials_beside_products"] >= 32
    assert line["spill_bytes"] <= 32
