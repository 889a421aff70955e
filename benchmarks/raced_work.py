"""The work of a launch on the documents and lengths that races were run on, which no signature says."""

import dataclasses
import functools
from typing import Any

import numpy as np

from attn_tune.kernels.flash_attention import costs
from attn_tune.kernels.flash_attention.costs import Launch
from attn_tune.ops.flash_attention.inputs import make_inputs
from attn_tune.ops.flash_attention.problem import Problem


@functools.lru_cache(maxsize=4096)
def drawn_ids(problem: Problem) -> tuple[np.ndarray | None, ...]:
    """Segments of rows and of keys, and lengths, that the races of a problem were run on."""
    # Of any size these are the same, and the rest is small.
    small = dataclasses.replace(problem, num_q_heads=1, num_kv_heads=1, head_dim=8, v_head_dim=8)
    made = make_inputs(dataclasses.replace(small, has_sinks=False), "fwd", 0)
    return made.q_segments, made.kv_segments, made.kv_lengths


@functools.lru_cache(maxsize=65536)
def raced_work(launch: Launch, problem: Problem) -> costs.Work:
    """The work of a launch on the documents or lengths that it was raced on, which no signature says."""
    work = costs.work_of(launch, problem)
    if not problem.has_segments:
        return work
    rows, keys = costs.tile_of(launch)
    q_ids, kv_ids, lengths = drawn_ids(problem)
    if launch.name == "triton_split/fwd":
        # It reads all documents, and keys up to their lengths.
        counted = problem.kv_len if lengths is None else lengths.mean()
        longest = problem.kv_len if lengths is None else lengths.max()
        usual = costs.COUNTED if lengths is not None else 1.0
        tiles = work.tiles * counted / problem.kv_len / usual
        return work._replace(tiles=tiles, longest=max(1, round(work.longest * longest / problem.kv_len)))
    of_keys = launch.name == "triton/dkv"
    begin, end = _spans(problem, rows, keys, of_keys=of_keys)
    begin, end = (np.broadcast_to(x, (problem.batch, x.size)) for x in (begin, end))
    if lengths is not None and of_keys:
        behind = np.arange(end.shape[1]) * keys >= lengths[:, None]
        end = np.where(behind, begin, end)
    elif lengths is not None:
        end = np.minimum(end, -(-lengths[:, None] // keys))
    elif work.ranges:
        first, last = _meeting(kv_ids, q_ids, keys, rows) if of_keys else _meeting(q_ids, kv_ids, rows, keys)
        begin, end = np.maximum(begin, first), np.minimum(end, last)
    counts = np.maximum(end - begin, 0)
    heads, walks = (problem.num_kv_heads, problem.group_size) if of_keys else (problem.num_q_heads, 1)
    return work._replace(tiles=float(heads * walks * counts.sum()), longest=int(walks * counts.max()))


def _spans(problem: Problem, rows: int, keys: int, *, of_keys: bool) -> tuple[np.ndarray, np.ndarray]:
    """The first tile that each program walks, and the one behind the last, as far as causal and window go."""
    (left, right), offset = problem.bounds, problem.offset
    owned, walked, own, other = problem.q_len, problem.kv_len, rows, keys
    if of_keys:
        left, right, offset = right, left, -offset
        owned, walked, own, other = walked, owned, other, own
    first = np.arange(0, owned, own) + offset
    last = np.minimum(first + own, owned + offset) - 1
    low = np.zeros_like(first) if left is None else np.maximum(first - left, 0)
    high = np.full_like(last, walked - 1) if right is None else np.minimum(last + right, walked - 1)
    return low // other, np.where(high >= 0, high // other + 1, 0)


def _meeting(own: Any, other: Any, block: int, other_block: int) -> tuple[np.ndarray, np.ndarray]:
    """The first tile of ``other`` whose ids are between those of each tile of ``own``, and the one behind the last."""

    def extremes(ids: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
        padded = np.pad(ids, ((0, 0), (0, -ids.shape[1] % size)), mode="edge")
        tiles = padded.reshape(ids.shape[0], -1, size)
        return tiles.min(-1), tiles.max(-1)

    (low, high), (least, most) = extremes(own, block), extremes(other, other_block)
    meets = (low[:, :, None] <= most[:, None]) & (least[:, None] <= high[:, :, None])
    behind = meets.shape[-1] - np.argmax(meets[..., ::-1], -1)
    return np.argmax(meets, -1), np.where(meets.any(-1), behind, 0)
