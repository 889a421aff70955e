"""Configs of near problems: what each kernel makes of them, and what auto takes on an H200 with the shipped pack."""

import dataclasses

import pytest

from attn_tune.devices.identity import device_from_kind
from attn_tune.kernels.flash_attention.cudnn import limits as cudnn_limits
from attn_tune.kernels.flash_attention.triton.config import (
    BackwardConfig,
    DkvConfig,
    DqConfig,
    ForwardConfig,
)
from attn_tune.kernels.flash_attention.triton_fused.config import BackwardConfig as FusedConfig
from attn_tune.kernels.flash_attention.triton_split.config import ForwardConfig as SplitConfig
from attn_tune.kernels.lang.gluon.attention.config import ForwardConfig as HopperConfig
from attn_tune.kernels.registry import get_kernel
from attn_tune.ops.flash_attention.problem import Problem
from attn_tune.runtime.active import settings
from attn_tune.runtime.lookup.answer import Rung, SourceKind
from attn_tune.runtime.lookup.dispatch import explain, lookup
from attn_tune.schema.device import Device

H200 = device_from_kind("nvidia-h200")
PCIE = Device(platform="cuda", family="sm_90", variant="nvidia-h100-pcie", units=114)


def problem(B=4, T=4096, S=None, N=16, K=16, H=128, **flags):
    return Problem(
        batch=B, q_len=T, kv_len=S or T, num_q_heads=N, num_kv_heads=K, head_dim=H, v_head_dim=H,
        scale=H**-0.5, **flags,
    )  # fmt: skip


def adapt(kernel, tuned, asked, config, direction="fwd", device=H200):
    spec = get_kernel(f"flash_attention/{kernel}")
    search = spec.searches[direction]
    found = search.adapt(tuned, asked, device, config)
    assert type(found) is type(config)
    assert search.infeasible(asked, device, found) is None
    return found


@pytest.fixture
def on_an_h200(monkeypatch):
    """cuDNN, which the machine of the tests need not have, and no remembered answers."""
    monkeypatch.setattr(settings, "_current", None)
    monkeypatch.setattr(cudnn_limits, "cudnn_version", lambda: (9, 19, 0))


HOPPER = HopperConfig(block_k=128, num_stages=2, heads_per_section=16, num_programs=132, ping_pong=True)


@pytest.mark.parametrize(
    ("tuned", "asked", "section"),
    [
        # 56 heads in groups of 7: 7, 14, 28 or 56.
        (problem(N=16, K=4, causal=True), problem(B=2, T=3072, N=28, K=4, causal=True), 14),
        # 36 heads in groups of 6.
        (problem(N=16, K=2, causal=True), problem(B=3, T=5000, N=12, K=2, causal=True), 18),
        # Half the keys of a head: twice as many of them stay in the cache.
        (problem(T=8192, N=16, K=16), problem(T=4096, N=16, K=16), 32),
        (problem(N=16, K=4), problem(N=16, K=4, B=2), 16),
        (problem(B=2, N=8, K=8), problem(B=1, N=5, K=5), 5),
    ],
)
def test_a_section_of_triton_hopper_divides_the_heads_and_keeps_its_size_in_the_cache(tuned, asked, section):
    found = adapt("triton_hopper", tuned, asked, HOPPER)
    assert found == dataclasses.replace(HOPPER, heads_per_section=section)
    assert asked.batch * asked.num_q_heads % section == 0
    assert section % asked.group_size == 0


def test_triton_hopper_has_a_program_for_every_multiprocessor_that_has_work():
    small, large = problem(B=1, T=512, N=8, K=8), problem(B=2, T=1024, N=16, K=16)
    config = dataclasses.replace(HOPPER, heads_per_section=8, num_programs=32)
    assert adapt("triton_hopper", small, large, config).num_programs == 132
    assert adapt("triton_hopper", large, small, HOPPER).num_programs == 32
    assert adapt("triton_hopper", small, large, config, device=PCIE).num_programs == 114


def test_tiles_of_triton_are_cut_to_the_lengths_with_warps_to_match():
    tuned, asked = problem(T=200), problem(T=100)
    wide = ForwardConfig(block_q=256, block_k=64, num_warps=16, num_stages=2)
    cut = dataclasses.replace(wide, block_q=128)
    assert adapt("triton", tuned, asked, wide) == cut
    narrow = dataclasses.replace(wide, block_q=128, block_k=128, num_warps=8)
    assert adapt("triton", problem(T=64), problem(T=40), narrow) == dataclasses.replace(narrow, block_q=64, block_k=64)
    assert adapt("triton", problem(T=32), problem(T=20), narrow) == dataclasses.replace(
        narrow, block_q=32, block_k=32, num_warps=4
    )
    # Nothing to cut: not even warps that an untuned config would not have.
    odd = ForwardConfig(block_q=32, block_k=32, num_warps=8, num_stages=2)
    assert adapt("triton", tuned, asked, odd) == odd


def test_both_launches_of_tritons_backward_are_cut():
    config = BackwardConfig(
        dq=DqConfig(block_q=128, block_k=32, num_warps=8, num_stages=3),
        dkv=DkvConfig(block_q=64, block_k=128, num_warps=8, num_stages=4),
    )
    found = adapt("triton", problem(T=64, S=128), problem(T=32, S=64), config, "bwd")
    assert found.dq == DqConfig(block_q=32, block_k=32, num_warps=4, num_stages=3)
    assert found.dkv == DkvConfig(block_q=32, block_k=64, num_warps=8, num_stages=4)


def test_the_tile_of_triton_fused_is_cut():
    config = FusedConfig(block_q=64, block_k=128, num_warps=8, num_stages=3, transposed_dq=True)
    found = adapt("triton_fused", problem(T=128, H=64), problem(T=30, H=64), config, "bwd")
    assert found == dataclasses.replace(config, block_q=32, block_k=32, num_warps=4)


SPLIT = SplitConfig(block_q=64, block_k=64, num_warps=4, num_stages=3, num_splits=16)


@pytest.mark.parametrize(
    ("asked", "splits"),
    [
        ({"B": 2}, 16),
        # Twice the sequences keep the device busy with half the splits.
        ({"B": 4}, 8),
        ({"B": 1}, 32),
        # As many parts, each of half the keys.
        ({"S": 32768}, 16),
        # Few keys are worth few parts.
        ({"B": 1, "S": 2048}, 4),
        ({"B": 200}, 1),
    ],
)
def test_the_splits_of_triton_split_follow_the_work(asked, splits):
    shape = {"B": 2, "T": 16, "S": 65536, "N": 32, "K": 8, "causal": True}
    found = adapt("triton_split", problem(**shape), problem(**(shape | asked)), SPLIT)
    assert found == dataclasses.replace(SPLIT, num_splits=splits)


def test_every_split_keeps_64_keys():
    shape = {"T": 16, "N": 32, "K": 8, "causal": True}
    config = dataclasses.replace(SPLIT, num_splits=128)
    found = adapt("triton_split", problem(B=2, S=65536, **shape), problem(B=1, S=4096, **shape), config)
    assert found.num_splits == 64


def test_a_tile_of_triton_split_is_no_higher_than_its_packed_rows():
    tuned, asked = problem(T=8, S=8192, N=32, K=4), problem(T=4, S=8192, N=16, K=4)
    assert adapt("triton_split", tuned, asked, SPLIT).block_q == 16


def ask(text, direction="fwd", **more):
    return lookup("flash_attention", f"flash_attention/v1 {text}", direction, device=H200, **more)


@pytest.mark.parametrize(
    ("shape", "section"),
    [("b=2 t=3072 s=3072 n=28 k=4", 14), ("b=3 t=5000 s=5000 n=12 k=2", 18)],
)
def test_the_adapted_winner_and_never_its_loser_answers_without_an_exact_row(on_an_h200, shape, section):
    text = f"{shape} h=128 v=128 dtype=bfloat16 causal=1"
    answer = ask(text)
    assert (answer.kernel, answer.rung) == ("triton_hopper", Rung.NEIGHBOUR)
    assert answer.source_kind is SourceKind.SHIPPED
    assert answer.config["heads_per_section"] == section
    assert answer.adapted_from == {**answer.config, "heads_per_section": 16}
    told = str(explain("flash_attention", answer.signature, device=H200))
    assert "adapted from heads_per_section=16  CHOSEN" in told
    # By name, the row of the loser: no other kernel was asked for.
    assert ask(text, kernel="cudnn").rung is Rung.NEIGHBOUR


def test_the_heuristic_answers_where_winners_of_near_problems_are_absent(on_an_h200, monkeypatch):
    from attn_tune.kernels.flash_attention.triton_hopper import limits

    monkeypatch.setattr(limits, "refuses_triton", lambda oldest: "too old a Triton")
    answer = ask("b=2 t=3072 s=3072 n=28 k=4 h=128 v=128 dtype=bfloat16 causal=1")
    assert (answer.kernel, answer.rung) == ("cudnn", Rung.UNTUNED)
    assert "too old a Triton" in {r.reason for r in answer.rejected}
