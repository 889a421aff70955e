"""The configs worth trying, nearest to the untuned choice first."""

import functools
import itertools
from collections.abc import Iterable, Iterator

from attn_tune.kernels.flash_attention.tokamax_triton.config import (
    MIN_BLOCK,
    BackwardConfig,
    ForwardConfig,
)
from attn_tune.kernels.flash_attention.tokamax_triton.limits import infeasible, power
from attn_tune.kernels.knobs import tried
from attn_tune.kernels.lang.libraries.features import visible_bounds
from attn_tune.kernels.lang.space import first_feasible, nearest_feasible
from attn_tune.kernels.lang.triton.limits import MAX_SHARED_BYTES
from attn_tune.ops.flash_attention.problem import Problem
from attn_tune.schema.device import Device

_SIZES = tried(ForwardConfig, "block_q")
_WARPS, _STAGES = tried(ForwardConfig, "num_warps"), tried(ForwardConfig, "num_stages")
# Float32 registers a thread for accumulators and one tile of logits; there are 255, and a few more are spilled.
_MOST_ACCUMULATORS = 288
# Multiprocessors of an A100; where fewer programs than that have work, keys are worth splitting.
_UNITS = 108
# Head dims from here on are worth cutting to pieces.
_WIDE = 256


def forward_candidates(problem: Problem, device: Device) -> tuple[ForwardConfig, ...]:
    """Forward configs. Keys are split only where there are few rows, wide heads are also tried in two pieces."""
    p = problem
    packs = (False, True) if p.mask_dims is not None and p.mask_dims[3] != "1" else (False,)
    pieces = (None, p.head_dim // 2) if p.head_dim == p.v_head_dim == _WIDE else (None,)
    configs = (
        ForwardConfig(
            block_q=q,
            block_k=k,
            num_warps=warps,
            num_stages=stages,
            block_d=piece,
            block_d_out=piece,
            split_k=split,
            pack_mask=pack,
        )
        for q, k, warps, stages, pack, piece in itertools.product(
            _cut(_SIZES, p.q_len), _cut(_SIZES, p.kv_len), _WARPS, _STAGES, packs, pieces
        )
        for split in _splits(p, device, q)
        if _is_light(q * (p.v_head_dim + k), warps, q)
        and _may_fit(p, device, k, stages)
        and stages <= max(2, -(-p.kv_len // k))
    )
    return _ordered(forward_heuristic(p, device), p, device, configs, split_k=True)


def backward_candidates(problem: Problem, device: Device) -> tuple[BackwardConfig, ...]:
    """Backward configs: tiles that stay have one size, so that no program idles; so have those that pass."""
    p = problem
    owned = _cut(_SIZES, max(p.q_len, p.kv_len))
    configs = (
        BackwardConfig(
            block_m1=walked,
            block_n1=stays,
            block_m2=stays,
            block_n2=walked,
            num_warps=warps,
            num_stages=stages,
        )
        for stays, walked, warps, stages in itertools.product(owned, owned, _WARPS, _STAGES)
        if _is_light(stays * (p.head_dim + p.v_head_dim + walked), warps, stays)
        and _may_fit(p, device, walked, stages)
        and stages <= max(2, -(-min(p.q_len, p.kv_len) // walked))
    )
    return _ordered(backward_heuristic(p, device), p, device, configs)


def forward_heuristic(problem: Problem, device: Device) -> ForwardConfig:
    """The library's own: 64x64 in four warps and two stages, or less where the lengths are less; fewer if need be."""
    blocks = [_cut((64,), length)[0] for length in (problem.q_len, problem.kv_len)]
    configs = [
        ForwardConfig(block_q=q, block_k=k, num_warps=4, num_stages=stages)
        for q, k, stages in ((*blocks, 2), (*blocks, 1), (blocks[0], MIN_BLOCK, 1))
    ]
    return first_feasible(configs, functools.partial(infeasible, problem, device))


def backward_heuristic(problem: Problem, device: Device) -> BackwardConfig:
    """The library's own: tiles of 64 stay and tiles of 32 pass, in four warps and two stages."""
    configs = [
        BackwardConfig(block_m1=32, block_n1=64, block_m2=64, block_n2=32, num_warps=4, num_stages=stages)
        for stages in (2, 1)
    ]
    return first_feasible(configs, functools.partial(infeasible, problem, device))


def _cut(sizes: tuple[int, ...], length: int) -> tuple[int, ...]:
    """``sizes``, none of which is longer than the power of two that covers the length."""
    most = max(MIN_BLOCK, 1 << (length - 1).bit_length())
    return tuple(sorted({min(size, most) for size in sizes}))


def _splits(p: Problem, device: Device, block_q: int) -> Iterator[int]:
    programs = p.batch * p.num_q_heads * -(-p.q_len // block_q)
    splits_at_all = p.mask_dims is None and visible_bounds(p) == (None, None)
    for split in tried(ForwardConfig, "split_k"):
        # The last one fills the device once more than it has to.
        if split == 1 or (splits_at_all and programs * split < 2 * (device.units or _UNITS)):
            yield split


def _is_light(floats: int, warps: int, rows: int) -> bool:
    """Whether the accumulators fit the registers, and each warp has rows of its own."""
    return floats // (32 * warps) <= _MOST_ACCUMULATORS and warps <= max(2, rows // 8)


def _may_fit(p: Problem, device: Device, walked: int, stages: int) -> bool:
    """Whether the tiles that pass fit shared memory, one set for each stage but the last, if they are pipelined."""
    size = 4 if p.dtype == "float32" else 2
    limit = device.shared_bytes or MAX_SHARED_BYTES.get(device.compute_capability or 0, 0)
    return (stages - 1) * walked * (power(p.head_dim) + power(p.v_head_dim)) * size <= limit


def _ordered[C: (ForwardConfig, BackwardConfig)](
    start: C, problem: Problem, device: Device, configs: Iterable[C], *, split_k: bool = False
) -> tuple[C, ...]:
    blocks = ("block_q", "block_k", "split_k") if split_k else ("block_m1", "block_n1")
    reason = functools.partial(infeasible, problem, device)
    return nearest_feasible(start, configs, reason, doubling=(*blocks, "num_warps"))
