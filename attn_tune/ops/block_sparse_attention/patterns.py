"""Masks of blocks: the pattern of a workload, the same for every seed, so that its operations are known."""

import functools
from typing import Protocol

import numpy as np
from jaxtyping import Bool, Int

# Of the pairs of blocks of "random"; of at_edges.
DENSITY, EDGE_DENSITY = 0.12, 0.5
# Blocks of "local": those beside the diagonal, and every so many blocks of keys.
NEAR, STRIDE = 3, 8
# Mean blocks of a document, up to the longest, which has a fourth of all.
MEAN_DOCUMENT = 8
_SEED = 2026


class Masked(Protocol):
    """The part of a problem that its pattern depends on."""

    @property
    def block_mask_shape(self) -> tuple[int, int, int, int]: ...
    @property
    def mask_block_q(self) -> int: ...
    @property
    def mask_block_k(self) -> int: ...
    @property
    def batch(self) -> int: ...
    @property
    def num_q_heads(self) -> int: ...
    @property
    def q_len(self) -> int: ...
    @property
    def kv_len(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def bounds(self) -> tuple[int | None, int | None]: ...
    @property
    def workload(self) -> str: ...
    @property
    def at_edges(self) -> bool: ...


def pattern(problem: Masked) -> Bool[np.ndarray, "_b _n R C"]:
    """The mask of blocks of a problem's workload."""
    shape = problem.block_mask_shape
    rng = np.random.default_rng(_SEED)
    if problem.at_edges:
        return _edges(rng, shape)
    rows, columns = shape[2:]
    # Blocks of keys that a block of rows stands beside: positions are those of the bottom right.
    position = np.arange(rows) * problem.mask_block_q + problem.offset
    first = np.clip(position // problem.mask_block_k, 0, columns - 1)
    last = np.clip((position + problem.mask_block_q - 1) // problem.mask_block_k, 0, columns - 1)
    first, last, column = first[:, None], last[:, None], np.arange(columns)[None]
    beside = (column >= first) & (column <= last)
    match problem.workload:
        case "random":
            return (rng.random(shape) < DENSITY) | beside
        case "documents":
            return np.stack([_documents(rng, first, last, columns) for _ in range(shape[0] * shape[1])]).reshape(shape)
        case "local":
            near = (column >= first - NEAR) & (column <= last + NEAR)
            return np.broadcast_to(near | (column % STRIDE == STRIDE - 1) | (column == 0), shape)
        case _:
            return np.ones(shape, bool)


@functools.lru_cache(maxsize=256)
def listed_pairs(problem: Masked) -> int:
    """Pairs (row, column) of all batches and heads that the pattern lists and causality and window leave visible."""
    mask = pattern(problem)
    left, right = problem.bounds
    columns = mask.shape[3]
    begin = np.arange(0, columns * problem.mask_block_k, problem.mask_block_k, dtype=np.int64)
    end = np.minimum(begin + problem.mask_block_k, problem.kv_len)
    total = 0
    for block in range(mask.shape[2]):
        rows = np.arange(block * problem.mask_block_q, min((block + 1) * problem.mask_block_q, problem.q_len))
        position = (rows + problem.offset)[:, None]
        low = begin if left is None else np.maximum(begin, position - left)
        high = end if right is None else np.minimum(end, position + right + 1)
        visible = np.broadcast_to(np.maximum(high - low, 0), (len(rows), columns)).sum(0)
        total += int((mask[:, :, block] @ visible).sum())
    return total * (problem.batch // mask.shape[0]) * (problem.num_q_heads // mask.shape[1])


def _documents(
    rng: np.random.Generator, first: Int[np.ndarray, "R 1"], last: Int[np.ndarray, "R 1"], columns: int
) -> Bool[np.ndarray, "R C"]:
    longest = max(1, columns // 4)
    lengths = 1 + np.minimum(rng.exponential(MEAN_DOCUMENT, columns), longest - 1).astype(int)
    lengths[rng.integers(0, max(1, columns // MEAN_DOCUMENT))] = longest
    document = np.repeat(np.arange(columns), lengths)[:columns]
    return (document[None] >= document[first]) & (document[None] <= document[last])


def _edges(rng: np.random.Generator, shape: tuple[int, ...]) -> Bool[np.ndarray, "_b _n R C"]:
    """Rows of blocks with none, one and all; a block of keys that no row lists, where there are enough of each."""
    mask = rng.random(shape) < EDGE_DENSITY
    rows, columns = shape[2:]
    if rows > 1:
        mask[:, :, 0] = False
    if rows > 3:
        mask[:, :, 1] = np.arange(columns) == columns // 2
    mask[:, :, -1] = True
    if columns > 2:
        mask[..., 1] = False
    return mask
