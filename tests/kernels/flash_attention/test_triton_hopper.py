"""The forward for Hopper, as far as it goes without one: what it refuses, what it tries, who computes what."""

import dataclasses
import importlib.metadata
import itertools

import numpy as np
import pytest

from attn_tune.kernels.flash_attention.triton_hopper import SPEC
from attn_tune.kernels.flash_attention.triton_hopper.schedule import is_dynamic, schedule
from attn_tune.kernels.flash_attention.untuned import place
from attn_tune.kernels.lang.gluon.attention.config import BLOCK_Q
from attn_tune.kernels.lang.gluon.attention.plan import (
    has_own_buffer,
    plan_of,
    q_slots,
    shared_bytes,
)
from attn_tune.kernels.lang.triton.device.static import static_of
from attn_tune.kernels.lang.triton.limits import refuses_triton
from attn_tune.ops.flash_attention.problem import Problem
from attn_tune.schema.device import Device
from attn_tune.schema.errors import UsageError
from tests.ops.cases import ON_HOPPER

H200 = Device(platform="cuda", family="sm_90", variant="nvidia-h200", units=132)
SEARCH = SPEC.searches["fwd"]


def problem(B=4, T=4096, S=None, N=16, K=16, H=128, V=None, **flags):
    return Problem(
        batch=B, q_len=T, kv_len=S or T, num_q_heads=N, num_kv_heads=K, head_dim=H, v_head_dim=V or H,
        scale=flags.pop("scale", H**-0.5), **flags,
    )  # fmt: skip


def config(p, **knobs):
    return dataclasses.replace(SEARCH.heuristic(p, H200), **knobs)


@pytest.mark.parametrize(
    ("p", "device", "words"),
    [
        (problem(), Device(platform="cuda", family="sm_80", variant="nvidia-a100"), "sm_80"),
        (problem(), Device(platform="cuda", family="sm_100", variant="nvidia-b200"), "sm_100"),
        (problem(), Device(platform="cpu", family="x86_64", variant="cpu-x86_64"), "x86_64"),
        (problem(dtype="float32"), H200, "float32"),
        (problem(H=96), H200, "64, 128, 256"),
        (problem(H=128, V=64), H200, "differ"),
        (problem(mask_dims="b1ts"), H200, "mask"),
        (problem(bias_dims="1nts"), H200, "bias"),
        (problem(has_positions=True), H200, "positions"),
        (problem(scale=-1.0), H200, "positive"),
    ],
)
def test_a_problem_that_triton_hopper_cannot_do_has_a_reason(p, device, words):
    assert words in SPEC.unsupported(p, "fwd", device)


@pytest.mark.parametrize(("version", "words"), [("3.6.0", "3.9 or later; 3.6.0"), ("3.9.0", None), ("3.10.1", None)])
def test_an_older_triton_is_refused_by_its_version(monkeypatch, version, words):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version)
    refuses_triton.cache_clear()
    reason = SPEC.unsupported(problem(), "fwd", H200)
    refuses_triton.cache_clear()
    assert reason is None if words is None else words in reason


@pytest.mark.parametrize(
    "knobs",
    [
        {"block_k": 48},
        {"num_stages": 1},
        {"heads_per_section": 0},
        {"num_programs": 0},
        {"num_stages": 2.5},
    ],
)
def test_a_knob_outside_its_range_is_named(knobs):
    with pytest.raises(UsageError, match=next(iter(knobs))):
        config(problem(), **knobs)


@pytest.mark.parametrize("p", ON_HOPPER.values(), ids=ON_HOPPER)
def test_all_candidates_fit(p):
    candidates = SEARCH.candidates[""](p, H200)
    assert len(candidates) >= 8
    assert max(shared_bytes(p, c) for c in candidates) <= 232448


def test_a_config_that_does_not_fit_is_refused_with_figures():
    p = problem()
    assert "232448" in SEARCH.infeasible(p, H200, config(p, num_stages=4))
    narrow = problem(H=64)
    assert "registers" in SEARCH.infeasible(narrow, H200, config(narrow, block_k=256, num_stages=2))
    assert "does not divide the 64" in SEARCH.infeasible(p, H200, config(p, heads_per_section=7))
    fewer = dataclasses.replace(H200, variant="nvidia-h100-pcie", units=114)
    assert "114" in SEARCH.infeasible(p, fewer, config(p))


def test_the_output_has_a_room_of_its_own_where_there_is_one():
    assert has_own_buffer(problem(), config(problem()))
    wide = problem(H=256)
    assert not has_own_buffer(wide, config(wide))


@pytest.mark.parametrize(
    ("p", "knobs", "slots", "registers", "overlap"),
    [
        (problem(H=64), {}, 1, True, True),
        (problem(), {}, 2, False, True),
        (problem(), {"num_stages": 3}, 1, False, False),
        (problem(H=256), {}, 1, False, False),
    ],
)
def test_a_tile_is_begun_beside_the_last_one_where_both_have_room(p, knobs, slots, registers, overlap):
    c = config(p, **knobs)
    plan = plan_of(p, c, static_of(p, c))
    assert (plan.q_slots, plan.q_in_registers, plan.overlap) == (slots, registers, overlap)
    assert q_slots(p, c) == slots


def _tiles_with_an_edge(p, c, length=None):
    """Whether of the tiles of keys that a tile of rows walks the last crosses an edge, and whether another does."""
    rows, keys = (
        np.arange(p.q_len)[:, None] + p.offset,
        np.arange(-(-p.kv_len // c.block_k) * c.block_k),
    )
    seen = keys < (length or p.kv_len)
    left, right = p.bounds
    seen = np.broadcast_to(seen, (p.q_len, len(keys)))
    if right is not None:
        seen = seen & (keys <= rows + right)
    if left is not None:
        seen = seen & (keys >= rows - left)
    last = others = False
    for first in range(0, p.q_len, BLOCK_Q):
        tiles = seen[first : first + BLOCK_Q].reshape(-1, len(keys) // c.block_k, c.block_k)
        whole, some = tiles.all((0, 2)), tiles.any((0, 2))
        if not some.any():
            last = True
            continue
        walked = np.flatnonzero(some)
        last |= not whole[walked[-1]]
        others |= not whole[walked[0] : walked[-1]].all()
    return last, others


@pytest.mark.parametrize("block_k", [64, 128])
@pytest.mark.parametrize(
    "p",
    [
        problem(T=512),
        problem(T=512, S=700),
        problem(T=512, causal=True),
        problem(T=512, S=1024, causal=True),
        problem(T=512, S=700, causal=True),
        problem(T=500, causal=True),
        problem(T=1000, S=300, causal=True),
        problem(T=512, window=(200, None), causal=True),
        problem(T=512, window=(None, 64)),
        problem(T=512, window=(64, 64)),
    ],
    ids=lambda p: p.signature.text[19:],
)
def test_no_edge_is_left_unmasked(p, block_k):
    """The plan calls no other tile whole: a tile with a hidden pair is masked always, or where it may have one."""
    c = config(p, block_k=block_k, num_stages=2)
    plan = plan_of(p, c, static_of(p, c))
    last, others = _tiles_with_an_edge(p, c)
    assert not last or plan.last_keys != "none"
    assert not others or plan.other_keys != "none"


@pytest.mark.parametrize("length", [1, 100, 128, 300, 512])
@pytest.mark.parametrize("causal", [False, True])
def test_lengths_only_cut_the_last_tile(causal, length):
    p = problem(T=512, has_segments=True, has_lengths=True, causal=causal)
    c = config(p, block_k=128, num_stages=2)
    masked = dataclasses.replace(p, has_segments=False, has_lengths=False)
    plan = plan_of(p, c, static_of(masked, c))
    _, others = _tiles_with_an_edge(p, c, length)
    assert plan.last_keys == "all"
    assert not others or plan.other_keys != "none"


def test_the_aligned_causal_forward_masks_nothing_in_its_loop():
    p = problem(causal=True)
    c = config(p)
    plan = plan_of(p, c, static_of(p, c))
    assert (plan.last_keys, plan.other_keys) == ("all", "none")


@pytest.mark.parametrize(
    ("p", "devices", "dynamic"),
    [
        (problem(has_segments=True), 1, True),
        (problem(has_segments=True, has_lengths=True), 1, False),
        (problem(causal=True, window=(127, None)), 1, False),
        (problem(B=1, T=32768, N=32, causal=True), 1, False),
        # A transfer between devices may be under way beside these.
        (problem(causal=True), 2, True),
        (problem(has_segments=True, has_lengths=True), 8, True),
        # Not worth zeroing the counter.
        (problem(B=1, T=1024, causal=True), 2, False),
        # Their schedule would be 2 MB of the program.
        (problem(B=64, N=128, T=8192, causal=True, window=(15, None)), 1, True),
    ],
)
def test_documents_and_launches_beside_transfers_come_from_a_queue_and_all_else_from_a_schedule(p, devices, dynamic):
    assert is_dynamic(p, devices) is dynamic
    assert SPEC.unsupported(p, "fwd", H200) is None
    c = config(p)
    width = 0 if dynamic else schedule(p, c).shape[1]
    assert plan_of(p, c, static_of(p, c), width).dynamic is dynamic


def _own(row):
    """A program's tiles: what comes before the first -1."""
    return list(itertools.takewhile(lambda tile: tile >= 0, row.tolist()))


@pytest.mark.parametrize("p", ON_HOPPER.values(), ids=ON_HOPPER)
@pytest.mark.parametrize("programs", [132, 7])
def test_every_tile_is_computed_once(p, programs):
    c = config(p, num_programs=programs)
    table = schedule(p, c)
    blocks = -(-p.q_len // BLOCK_Q)
    tiles = list(itertools.chain.from_iterable(map(_own, table)))
    assert sorted(tiles) == list(range(p.batch * p.num_q_heads * blocks))
    # A program looks two tiles ahead.
    assert (table[:, -2:] == -1).all()
    assert len(table) == min(programs, len(tiles))
    assert table.dtype == np.int32
    assert not table.flags.writeable


@pytest.mark.parametrize("heads", [4, 8, 64])
def test_a_causal_mask_leaves_no_program_idle(heads):
    """By the keys that each tile walks, the busiest program has at most 2 % more than the mean."""
    p = problem(causal=True)
    table = schedule(p, config(p, heads_per_section=heads))
    blocks = p.q_len // BLOCK_Q
    work = [sum(tile % blocks + 1 for tile in _own(row)) for row in table]
    assert max(work) <= 1.02 * np.mean(work)


def test_sections_follow_one_another_and_begin_with_their_longest_tiles():
    p = problem(causal=True)
    table = schedule(p, config(p, heads_per_section=16, num_programs=1))
    blocks = p.q_len // BLOCK_Q
    heads, block = np.divmod(_own(table[0]), blocks)
    sections = heads // 16
    assert (np.diff(sections) >= 0).all()
    for section in range(4):
        assert (np.diff(block[sections == section]) <= 0).all()


def test_tiles_of_a_narrow_window_cost_alike():
    """But for the first ones, all walk the same keys: two programs get the same number of them."""
    p = problem(B=1, N=1, K=1, causal=True, window=(127, None))
    table = schedule(p, config(p, heads_per_section=1, num_programs=2, block_k=64))
    assert [len(_own(row)) for row in table] == [16, 16]


@pytest.mark.parametrize(
    ("p", "first"),
    [
        (problem(causal=True), "triton_hopper"),
        (problem(), "triton_hopper"),
        (problem(H=256, causal=True), "triton_hopper"),
        (problem(H=256), "triton_hopper"),
        (problem(H=64, causal=True), "triton_hopper"),
        (problem(H=64), "triton_hopper"),
        (problem(H=64, causal=True, has_sinks=True), "triton_hopper"),
        (problem(H=64, causal=True, has_sinks=True, window=(127, None)), "triton"),
        (problem(causal=True, window=(1023, None)), "triton_hopper"),
    ],
)
def test_untuned_the_kernel_comes_first_that_was_fastest(p, first):
    names = ("cudnn", "triton", "triton_hopper")
    assert max(names, key=lambda name: place(name, p, "fwd", H200)) == first


def test_on_other_gpus_cudnn_comes_before_triton_with_any_window():
    a100 = Device(platform="cuda", family="sm_80", variant="nvidia-a100")
    narrow = problem(causal=True, window=(127, None))
    assert place("cudnn", narrow, "fwd", a100) > place("triton", narrow, "fwd", a100)


@pytest.mark.parametrize(
    ("p", "first"),
    [
        (problem(B=16, T=1024, S=1024, H=64, causal=True), "triton"),
        (problem(B=8, T=2048, S=2048, N=64, K=8, H=64, causal=True, has_sinks=True), "triton"),
        (problem(B=16, T=1024, S=1024, H=64), "cudnn"),
        (problem(B=16, T=1024, S=1024, causal=True), "cudnn"),
        (problem(H=64, causal=True), "cudnn"),
    ],
)
def test_untuned_backwards_of_few_causal_keys_and_small_heads_are_the_triton_kernels(p, first):
    assert max(("cudnn", "triton"), key=lambda name: place(name, p, "bwd", H200)) == first


def test_the_fast_tanh_is_untuned_where_there_is_a_cap_and_tried_nowhere_else():
    plain, capped = problem(causal=True), problem(causal=True, soft_cap=50.0)
    assert not any(c.fast_tanh for c in SEARCH.candidates[""](plain, H200))
    first, second, *_ = SEARCH.candidates[""](capped, H200)
    assert (first.fast_tanh, second) == (True, dataclasses.replace(first, fast_tanh=False))
