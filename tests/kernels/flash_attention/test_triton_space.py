"""Declarations of the Triton kernels: candidates, untuned choices, limits."""

import dataclasses
import itertools
import subprocess
import sys

import pytest

from attn_tune.kernels.flash_attention._triton.backward_dbias import dbias_config
from attn_tune.kernels.flash_attention._triton.limits import (
    shared_bytes,
    shared_bytes_at_most,
)
from attn_tune.kernels.flash_attention.triton import SPEC, heuristic
from attn_tune.kernels.flash_attention.triton.config import (
    BackwardConfig,
    DkvConfig,
    DqConfig,
    ForwardConfig,
)
from attn_tune.kernels.lang.triton.device.static import static_of
from attn_tune.kernels.lang.triton.limits import shared_limit
from attn_tune.schema import Device, UsageError, config_digest, config_from_dict, config_to_dict
from tests.ops.cases import CUDA, TILED as PROBLEMS, cuda as device, flash as problem

EVERY = [pytest.param(p, d, id=f"{n}-{d.family}") for n, p in PROBLEMS.items() for d in CUDA]
PARTS = (("fwd", ""), ("bwd", "dq"), ("bwd", "dkv"))


def part_of(config, part):
    return getattr(config, part) if part else config


@pytest.mark.parametrize(("p", "d"), EVERY)
def test_untuned_choices_fit(p, d):
    for direction, part in PARTS:
        search = SPEC.searches[direction]
        whole = search.heuristic(p, d)
        assert search.infeasible(p, d, whole) is None
        assert shared_bytes_at_most(p, d, part_of(whole, part)) <= shared_limit(d)


def untuned(p, d, part):
    direction = "bwd" if part else "fwd"
    return part_of(SPEC.searches[direction].heuristic(p, d), part)


@pytest.mark.parametrize(("triton", "capped"), [("3.6.0", True), ("3.8.1", True), ("3.9.0", False), ("", False)])
def test_the_forward_of_an_older_triton_has_a_tile_of_its_own(triton, capped, monkeypatch):
    software = dataclasses.replace(heuristic.current_environment(), triton=triton)
    monkeypatch.setattr(heuristic, "current_environment", lambda: software)
    heuristic._is_compiled_as_before.cache_clear()
    try:
        for p in PROBLEMS.values():
            choice = untuned(p, device(), "")
            assert SPEC.searches["fwd"].infeasible(p, device(), choice) is None
            assert SPEC.searches["fwd"].candidates[""](p, device())[0] == choice
            if p in (PROBLEMS["float32"], PROBLEMS["bias-and-mask"], PROBLEMS["narrow"]):
                assert choice.max_registers is None
        assert (untuned(PROBLEMS["plain"], device(), "").max_registers == 128) is capped
        # Few queries make too few of the larger tiles.
        few = problem(T=128, S=8192, B=1)
        assert untuned(few, device(), "").max_registers is None
        # What was measured on one architecture says nothing of the others.
        assert untuned(PROBLEMS["plain"], device(100), "").max_registers is None
    finally:
        heuristic._is_compiled_as_before.cache_clear()


def test_hopper_has_a_real_space():
    counts = [len(SPEC.searches[d].candidates[part](PROBLEMS["plain"], device())) for d, part in PARTS]
    assert counts[0] >= 100
    assert min(counts) >= 80


def test_registers_are_capped_only_where_one_more_block_fits():
    candidates = set(SPEC.searches["fwd"].candidates[""](PROBLEMS["plain"], device()))
    capped = [c for c in candidates if c.max_registers is not None]
    assert capped
    for c in capped:
        assert dataclasses.replace(c, max_registers=None) in candidates
        blocks = 65536 // (32 * c.num_warps * c.max_registers)
        assert blocks == 65536 // (32 * c.num_warps * 255) + 1
        assert blocks * shared_bytes(PROBLEMS["plain"], device(), c) <= 228 * 1024
    assert {c.num_warps for c in capped} == {4, 8}


@pytest.mark.parametrize("registers", [0, 31, 256])
def test_a_cap_must_be_possible(registers):
    with pytest.raises(UsageError, match=f"max_registers .* got {registers}"):
        ForwardConfig(block_q=64, block_k=64, num_warps=4, num_stages=2, max_registers=registers)


def test_a_knob_that_is_not_set_is_not_in_the_digest():
    config = ForwardConfig(block_q=64, block_k=64, num_warps=4, num_stages=2)
    assert "max_registers" not in config_to_dict(config)
    assert config_from_dict(ForwardConfig, config_to_dict(config)) == config
    capped = dataclasses.replace(config, max_registers=128)
    assert config_from_dict(ForwardConfig, config_to_dict(capped)) == capped
    assert config_digest(config_to_dict(config)) == config_digest(config)


def test_no_block_is_longer_than_its_length_needs():
    p = problem(T=100, S=20)
    for (direction, part), d in itertools.product(PARTS, CUDA):
        for c in SPEC.searches[direction].candidates[part](p, d):
            assert c.block_q <= 128
            assert c.block_k <= 32


def test_shared_memory_of_the_device_wins_over_the_table():
    search, p = SPEC.searches["fwd"], PROBLEMS["plain"]
    config = ForwardConfig(block_q=128, block_k=128, num_warps=8, num_stages=2)
    assert search.infeasible(p, device(), config) is None
    reason = search.infeasible(p, device(shared_bytes=101_376), config)
    assert reason is not None
    assert "163840" in reason
    assert "101376" in reason


def test_infeasible_names_the_part():
    fits = DqConfig(block_q=64, block_k=64, num_warps=4, num_stages=2)
    huge = DkvConfig(block_q=128, block_k=128, num_warps=4, num_stages=4)
    whole = BackwardConfig(dq=fits, dkv=huge)
    search, p = SPEC.searches["bwd"], PROBLEMS["plain"]
    assert search.infeasible(p, device(), fits) is None
    assert str(search.infeasible(p, device(), whole)).startswith("dkv: ")


def test_accumulators_that_cannot_be_registers_are_refused():
    config = DkvConfig(block_q=64, block_k=128, num_warps=4, num_stages=1)
    assert "320 registers" in str(SPEC.searches["bwd"].infeasible(PROBLEMS["plain"], device(), config))
    assert SPEC.searches["bwd"].infeasible(PROBLEMS["plain"], device(100), config) is None


@pytest.mark.parametrize(
    ("p", "d", "word"),
    [
        (PROBLEMS["plain"], device(75), "8.0"),
        (PROBLEMS["plain"], Device(platform="tpu", family="v6e", variant="tpu-v6e"), "NVIDIA"),
        (PROBLEMS["plain"], Device(platform="cpu", family="x86_64", variant="cpu"), "NVIDIA"),
        (problem(H=264), device(), "head_dim=264"),
        (problem(H=64, V=512), device(), "v_head_dim=512"),
    ],
)
def test_unsupported_says_why(p, d, word):
    for direction in ("fwd", "bwd"):
        assert word in str(SPEC.unsupported(p, direction, d))


def test_everything_else_is_supported():
    for p in PROBLEMS.values():
        assert SPEC.unsupported(p, "fwd", device(80)) is None


@pytest.mark.parametrize("bad", [{"block_q": 48}, {"block_k": 8}, {"num_warps": 3}, {"num_stages": 0}])
def test_configs_refuse_impossible_knobs(bad):
    good = {"block_q": 64, "block_k": 64, "num_warps": 4, "num_stages": 2}
    with pytest.raises(UsageError, match=next(iter(bad))):
        ForwardConfig(**(good | bad))


@pytest.mark.parametrize("p", PROBLEMS.values(), ids=PROBLEMS)
def test_the_bias_gradient_fits_every_architecture(p):
    tile = dbias_config(p)
    size = 4 if p.dtype == "float32" else 2
    operands = 2 * tile.block_q * (static_of(p, tile).block_h + static_of(p, tile).block_v) * size
    assert operands <= min(map(shared_limit, CUDA))


def test_sections_are_equal_and_keep_a_group_together():
    for n, k, s in ((16, 16, 4096), (24, 8, 4096), (32, 8, 4096), (24, 8, 100_000), (7, 1, 2048)):
        p = problem(S=s, N=n, K=k, B=3)
        for tile in (
            ForwardConfig(block_q=64, block_k=64, num_warps=4, num_stages=2),
            DkvConfig(block_q=64, block_k=64, num_warps=4, num_stages=2),
        ):
            heads = 3 * (k if isinstance(tile, DkvConfig) else n)
            section = static_of(p, tile).heads_per_section
            assert heads % section == 0
            if isinstance(tile, ForwardConfig):
                assert section % p.group_size == 0


@pytest.mark.parametrize("group", [2, 4, 8])
def test_sections_of_keys_are_as_large_where_query_heads_share_them(group):
    tile = DkvConfig(block_q=64, block_k=64, num_warps=4, num_stages=2)
    own, shared = (static_of(problem(N=n, K=4, B=4), tile) for n in (4, 4 * group))
    assert shared.heads_per_section == own.heads_per_section > 1


def test_declaring_the_kernel_loads_no_accelerator_library():
    code = (
        "import sys, attn_tune.kernels.registry as r; r.kernels(); "
        "print([m for m in ('jax', 'triton', 'numpy') if m in sys.modules])"
    )
    # jaxtyping, which operands.py needs, is not imported by the specs either.
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert run.stdout.strip() == "[]", run.stderr
