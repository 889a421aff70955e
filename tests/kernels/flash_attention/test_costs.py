"""The work that the cost model counts, against a mask; and its figures."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from attn_tune.kernels.flash_attention import costs
from attn_tune.kernels.flash_attention.costs import FACTS, Launch
from attn_tune.kernels.flash_attention.untuned import place
from attn_tune.kernels.registry import get_kernel
from attn_tune.ops.flash_attention.problem import Problem
from attn_tune.schema.config import config_to_dict
from attn_tune.schema.device import Device

H200 = Device(platform="cuda", family="sm_90", variant="nvidia-h200", units=132)
FIGURES = json.loads(Path(costs.__file__).with_name("costs_sm_90.json").read_text())


def problem(B=2, T=300, S=None, N=4, K=2, H=64, **flags):
    return Problem(
        batch=B, q_len=T, kv_len=S or T, num_q_heads=N, num_kv_heads=K, head_dim=H, v_head_dim=H,
        scale=H**-0.5, **flags,
    )  # fmt: skip


def tiles_of(p, rows, keys, *, of_keys):
    """Tiles that hold a visible pair between the first and the last such, for each program of one head."""
    row = np.arange(p.q_len)[:, None] + p.offset
    column = np.arange(p.kv_len)[None, :]
    left, right = p.bounds
    seen = np.ones((p.q_len, p.kv_len), bool)
    if left is not None:
        seen &= column >= row - left
    if right is not None:
        seen &= column <= row + right
    if of_keys:
        seen, rows, keys = seen.T, keys, rows
    counts = []
    for first in range(0, seen.shape[0], rows):
        (columns,) = np.nonzero(seen[first : first + rows].any(0))
        counts.append(columns.max() // keys - columns.min() // keys + 1 if columns.size else 0)
    return counts


@settings(deadline=None, max_examples=200)
@given(
    T=st.integers(1, 300),
    S=st.integers(1, 300),
    causal=st.booleans(),
    left=st.none() | st.integers(0, 200),
    rows=st.sampled_from([16, 64, 128]),
    keys=st.sampled_from([32, 64, 128]),
    of_keys=st.booleans(),
)
def test_work_is_that_of_the_mask(T, S, causal, left, rows, keys, of_keys):
    p = problem(T=T, S=S, causal=causal, window=(left, None))
    name, heads, walks = ("triton/dkv", 2, 2) if of_keys else ("triton/dq", 4, 1)
    work = costs.work_of(Launch(name, (rows, keys, 4, 2)), p)
    counts = tiles_of(p, rows, keys, of_keys=of_keys)
    assert work.programs == 2 * heads * len(counts)
    assert work.tiles == 2 * heads * walks * sum(counts)
    assert work.longest == walks * max(counts)


def test_documents_are_walked_like_a_window_of_their_usual_length():
    packed, window = problem(T=8192, causal=True, has_segments=True), (1024, None)
    launch = Launch("triton/fwd", (64, 64, 4, 3))
    windowed = costs.work_of(launch, problem(T=8192, causal=True, window=window))
    assert costs.work_of(launch, packed).tiles == windowed.tiles
    assert costs.work_of(launch, packed).ranges
    assert not windowed.ranges


@pytest.mark.parametrize("name", sorted(FIGURES["launches"]))
def test_every_launch_has_figures_for_every_head_dim(name):
    launch = FIGURES["launches"][name]
    assert sorted(launch["factors"]) == sorted(FACTS)
    assert costs.kernel_of(name) in FIGURES["kernels"]
    for width in (64, 128, 256):
        p = problem(H=width)
        found = [costs.launch_us(Launch(name, knobs), p, H200) for knobs in costs.choices(name, p)]
        assert found
        assert min(found) > 0


@pytest.mark.parametrize("name", ["triton/fwd", "triton_hopper/fwd", "triton_split/fwd"])
def test_more_work_takes_longer(name):
    """Else a longer sequence could move a call to another kernel and back."""
    for knobs in costs.choices(name, problem(H=128)):
        of = [costs.launch_us(Launch(name, knobs), problem(T=64 * n, H=128), H200) for n in (1, 8, 64)]
        assert of == sorted(of)


def able():
    """Each kernel with problems that it takes."""
    for kernel in ("triton", "triton_hopper", "triton_split"):
        spec = get_kernel(f"flash_attention/{kernel}")
        for dtype in ("bfloat16", "float32"):
            for T, S in ((44, 44), (300, 300), (20, 5000), (4096, 4096)):
                for H in (64, 80, 128, 256):
                    p = problem(B=1, T=T, S=S, H=H, causal=True, dtype=dtype)
                    if spec.unsupported(p, "fwd", H200) is None:
                        yield pytest.param(spec, p, id=f"{kernel}-{dtype}-{T}x{S}-{H}")


@pytest.mark.parametrize(("spec", "p"), list(able()))
def test_the_config_that_should_take_least_fits_the_device(spec, p):
    for search in spec.searches.values():
        config = search.heuristic(p, H200)
        assert search.infeasible(p, H200, config) is None, config_to_dict(config)


@pytest.mark.parametrize("flags", [{"bias_dims": "bnts"}, {"dropout_rate": 0.1}])
def test_keys_are_split_where_features_have_no_figures_too(flags):
    p = problem(B=1, T=128, S=16384, N=8, K=2, H=128, causal=True, **flags)
    first = [place(kernel, p, "fwd", H200) for kernel in ("triton_split", "triton")]
    assert first[0] > first[1]


def test_gpus_but_hopper_spread_a_soft_cap_over_more_warps():
    """Their tables are for plain problems: tanh needs registers of its own."""
    a100 = Device(platform="cuda", family="sm_80", variant="nvidia-a100", units=108)
    search = get_kernel("flash_attention/triton").searches["fwd"]
    plain, capped = (
        search.heuristic(problem(T=4096, causal=True, **flags), a100) for flags in ({}, {"soft_cap": 30.0})
    )
    assert capped.num_warps == 2 * plain.num_warps
