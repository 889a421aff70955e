"""Needs of the tiles of attention over a cache, and the problems that no tile can do."""

from typing import Any, NamedTuple

from attn_tune.kernels.lang.triton.device.static import padded
from attn_tune.kernels.lang.triton.limits import refuses_cache, refuses_device, shared_limit
from attn_tune.ops.fields.cache import CODES, LATENT
from attn_tune.schema.device import Device

MAX_HEAD_DIM = 256
# Of values that are part of keys, and of what keys have beside them: a tile of keys serves both products.
MAX_LATENT, MAX_BESIDE = 512, 128
# Every program reads the lengths, or the numbers of queries, of all sequences.
MOST_SEQUENCES = 8192
# Accumulators and one tile of logits, in float32 registers a thread, of 255 there are; some are spilled at the edges.
MOST_ACCUMULATORS = 288
# The tanh of these kernels is off by 1e-7 near zero, and the cap multiplies that: by 3e-5 in a logit at this one.
MOST_SOFT_CAP = 1000.0


class _Tile(NamedTuple):
    """The knobs of a tile that its memory depends on."""

    block_q: int
    block_k: int
    num_stages: int


_SMALLEST = _Tile(16, 16, 2)


def refuses_problem(problem: Any, device: Device, read: str) -> str | None:
    """The reason that no tile can do a problem on a device, or None.

    Args:
      read: what every program reads of all sequences, for the message.
    """
    if reason := refuses_device(device) or refuses_cache(problem.cache_dtype, device):
        return reason
    most = {"h": MAX_HEAD_DIM, "v": MAX_HEAD_DIM}
    if problem.layout == LATENT:
        most = {"h": problem.v_head_dim + MAX_BESIDE, "v": MAX_LATENT}
    for name, width in (("h", problem.head_dim), ("v", problem.v_head_dim)):
        if width > most[name]:
            return f"{name}={width} is above {most[name]}: an accumulator of one tile does not fit the registers"
    if problem.soft_cap is not None and problem.soft_cap > MOST_SOFT_CAP:
        return f"soft_cap={problem.soft_cap:g} is above {MOST_SOFT_CAP:g}: its tanh loses digits of small logits"
    if problem.batch > MOST_SEQUENCES:
        return f"b={problem.batch} is above {MOST_SEQUENCES}: every program reads the {read} of all sequences"
    if problem.layout == LATENT and not certainly_fits(problem, device, _SMALLEST):
        return f"no tile of {problem.dtype} latents of h={problem.head_dim} fits the shared memory of {device.family}"
    return None


def refuses_tile(problem: Any, device: Device, tile: Any) -> str | None:
    """The reason that a tile cannot fit the device, or None. Never refuses what compiles and fits."""
    needed, limit = (tile.num_stages - 1) * streamed_bytes(problem, tile.block_k), shared_limit(device)
    if needed > limit:
        return f"its tiles need at least {needed} bytes of shared memory; {device.family} has {limit}"
    floats = tile.block_q * (padded(problem.v_head_dim) + tile.block_k) // (32 * tile.num_warps)
    if floats > MOST_ACCUMULATORS:
        return f"its accumulators need {floats} registers a thread; there are 255"
    return None


def certainly_fits(problem: Any, device: Device, tile: Any) -> bool:
    """Whether an untuned choice of this tile certainly has the shared memory that it needs."""
    size = 4 if problem.dtype == "float32" else 2
    widths, keys, buffers = streamed_widths(problem), tile.block_k, max(2, tile.num_stages)
    # Queries and weights pass through shared memory on their way to a product, and so do codes once they are wide.
    staged = tile.block_q * (widths[0] + keys) * size + 4096
    if problem.layout == LATENT:
        # Queries stay there, of float32 twice. The first stage of a paged cache is that of the table.
        staged = tile.block_q * sum(widths) * size * (2 if size == 4 else 1)
        buffers = max(2, tile.num_stages - 1) if problem.page_size else buffers
    if problem.cache_dtype in CODES:
        staged += keys * max(widths) * size
    return buffers * streamed_bytes(problem, keys) + staged <= shared_limit(device)


def streamed_bytes(problem: Any, keys: int) -> int:
    """Bytes of so many keys and their values."""
    size = 1 if problem.cache_dtype in CODES else 4 if problem.cache_dtype == "float32" else 2
    return keys * sum(streamed_widths(problem)) * size


def streamed_widths(problem: Any) -> tuple[int, ...]:
    """The padded widths of what a tile reads of a token: key and value, or the value and the rest of the key."""
    h, v = problem.head_dim, problem.v_head_dim
    if problem.layout == LATENT:
        return (padded(v), padded(h - v)) if h > v else (padded(v),)
    return padded(h), padded(v)
