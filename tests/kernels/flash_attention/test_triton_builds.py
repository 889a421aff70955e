"""The Triton kernels compile for absent GPUs, fit them, and use what makes them fast."""

import pytest

from attn_tune.kernels.lang.triton.compile import MAX_SHARED_BYTES
from tests.chosen import chosen, values_asked_for
from tests.kernels.flash_attention.triton_builds import BUILDS, KEPT, VARIANTS
from tests.kernels.scripts import built

MOST_SPILLED_BYTES = 200
TESTED = {f"{build.name}:{c}": (build, c) for build in BUILDS if build.name not in VARIANTS for c in build.capabilities}
UNTUNED = {name: (build, c) for name, (build, c) in TESTED.items() if build.rank == 0 and build.part != "dbias"}


@pytest.fixture(scope="module")
def results(request):
    """Each launch's line of ``triton_builds``, by its name and architecture: of those that this session asks for."""
    asked = {*values_asked_for(request, "launch"), *(f"{name}:90" for name in values_asked_for(request, "name"))}
    lines = built("tests.kernels.flash_attention.triton_builds", *(name for name in TESTED if name in asked))
    return {(line["build"], line["capability"]): line for line in lines}


def launches(of=TESTED):
    """The parameter ``launch`` of a test, a build and an architecture."""
    return pytest.mark.parametrize("launch", chosen(of, [name for name in KEPT if name in of]))


def on_hopper(*names):
    """The parameter ``name`` of a test, a build for Hopper."""
    return pytest.mark.parametrize("name", chosen(names, [name for name in names if f"{name}:90" in KEPT]))


@pytest.mark.slow
@launches()
def test_compiles_and_fits(launch, results):
    build, capability = TESTED[launch]
    line = results[build.name, capability]
    assert "raised" not in line, line["raised"]
    assert line["least_shared_bytes"] <= line["shared_bytes"] <= MAX_SHARED_BYTES[capability], line


@pytest.mark.slow
@launches(UNTUNED)
def test_untuned_choices_hardly_spill(launch, results):
    build, capability = UNTUNED[launch]
    line = results[build.name, capability]
    assert line["spill_bytes"] <= MOST_SPILLED_BYTES, line


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("fused-h128", ["fused_kernel"]),
        ("fused-everything", ["fused_kernel", "dbias_kernel"]),
        ("split-everything", ["split_kernel", "combine_kernel"]),
        ("dkv", ["dkv_kernel"]),
    ],
)
def test_each_part_is_the_launches_it_should_be(name, names, results):
    assert results[name, 90]["launches"] == names


@pytest.mark.slow
@on_hopper("fused-h64", "fused-h128", "fused-h256")
def test_the_fused_backward_neither_spills_nor_adds_one_by_one_on_hopper(name, results):
    line = results[name, 90]
    assert line["spill_bytes"] == 0
    assert line["wgmma"] > 0
    assert line["added_4_at_a_time"] > 0


@pytest.mark.slow
@on_hopper("fwd", "dq", "dkv", "fwd-h256", "fwd-mla", "fwd-everything", "split-h128")
def test_hopper_multiplies_by_warpgroups_and_copies_16_bytes_at_a_time(name, results):
    line = results[name, 90]
    assert line["wgmma"] > 0
    assert line["cp_async_16"] > 0


@pytest.mark.slow
@on_hopper("fwd-everything", "dbias-everything", "fused-everything", "hopper-everything")
def test_four_weights_share_a_dropout_hash_on_hopper(name, results):
    """A quarter, and what rows and seeds take; the keys are rows of the tile in ``fused`` and columns elsewhere."""
    line = results[name, 90]
    assert line["dropped_weights"] > 0
    assert line["dropout_hashes"] <= 0.75 * line["dropped_weights"]


@pytest.mark.slow
@on_hopper("hopper-h128", "hopper-h256", "hopper-candidate")
def test_the_forward_for_hopper_has_its_softmax_beside_its_products(name, results):
    """64 logits a thread at 128 keys a tile, 32 at 64: all of them before the second product is waited for."""
    line = results[name, 90]
    assert line["copies_by_descriptor"] > 0
    assert line["exponentials_beside_products"] >= 32
    assert line["spill_bytes"] <= 32
