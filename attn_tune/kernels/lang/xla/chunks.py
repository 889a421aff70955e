"""Configs of kernels in plain XLA that scan over pairs of a chunk of queries and a chunk of keys, and their choice."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from attn_tune.kernels.knobs import Knobs, Multiple, tried
from attn_tune.ops.fields.attention import AttentionProblem
from attn_tune.schema.device import Device

DECIDES_NO_CODE = "names, bounds and choice of knobs; a row holds their values"

_CHUNKS = (64, 128, 256, 512, 1024, 2048)
# One step holds a few arrays of this size; more does not fit beside the model.
_MAX_LOGITS_BYTES = 2**31
# Each step costs microseconds of its own, and the list of steps is a constant of the program.
_MAX_STEPS = 2**18
# What stays in the last-level cache of a CPU core, and what fills an accelerator.
_CPU_LOGITS_BYTES = 2**21
_ACCELERATOR_LOGITS_BYTES = 2**27


@dataclass(frozen=True, kw_only=True, slots=True)
class Chunks(Knobs):
    """Chunk lengths. A chunk longer than its axis is cut to it."""

    chunk_q: Annotated[int, Multiple(tried=_CHUNKS, doc="query rows of one step")]
    chunk_k: Annotated[int, Multiple(tried=_CHUNKS, doc="key columns of one step")]


@dataclass(frozen=True, kw_only=True, slots=True)
class ForwardConfig(Chunks):
    """The forward's only launch."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BackwardConfig(Chunks):
    """The backward's only launch."""


def unsupported(problem: AttentionProblem, direction: str, device: Device) -> str | None:
    """Always None: such a kernel is the one that can do everything."""
    return None


def infeasible(problem: AttentionProblem, device: Device, config: Chunks) -> str | None:
    """The reason that a config cannot run: its step's logits do not fit, or it has too many steps."""
    pair = config.chunk_q, config.chunk_k
    if (steps := _steps(problem, *pair)) > _MAX_STEPS:
        return f"{steps} chunk pairs; the limit is {_MAX_STEPS}"
    if (size := _logits_bytes(problem, *pair)) > _MAX_LOGITS_BYTES:
        return f"one step's logits take {size / 2**30:.1f} GiB; the limit is {_MAX_LOGITS_BYTES / 2**30:.0f} GiB"
    return None


def candidates[C: Chunks](config: type[C], problem: AttentionProblem, device: Device) -> Iterator[C]:
    """Every pair of chunk lengths, cut to the problem, each once."""
    for chunk_q, chunk_k in _pairs(problem):
        yield config(chunk_q=chunk_q, chunk_k=chunk_k)


def heuristic[C: Chunks](
    config: type[C], problem: AttentionProblem, device: Device, most: tuple[int, int] | None = None
) -> C:
    """The largest chunks whose logits fit the device's sweet spot.

    Args:
      most: chunks of queries and keys that are not exceeded where smaller ones fit too.
    """
    budget = _CPU_LOGITS_BYTES if device.platform == "cpu" else _ACCELERATOR_LOGITS_BYTES
    pairs = _pairs(problem)
    few = [pair for pair in pairs if _steps(problem, *pair) <= _MAX_STEPS] or [max(pairs)]
    fitting = [pair for pair in few if _logits_bytes(problem, *pair) <= budget]
    within = [pair for pair in fitting if most is not None and pair[0] <= most[0] and pair[1] <= most[1]] or fitting
    # Among equal areas, long key chunks: the accumulators are read and written once a step. Very long axes leave only
    # chunks over the budget, and the smallest of those is taken.
    if within:
        chunk_q, chunk_k = max(within, key=lambda pair: (pair[0] * pair[1], pair[1]))
    else:
        chunk_q, chunk_k = min(few, key=lambda pair: pair[0] * pair[1])
    return config(chunk_q=chunk_q, chunk_k=chunk_k)


def _pairs(problem: AttentionProblem) -> list[tuple[int, int]]:
    q_chunks = sorted({min(chunk, problem.q_len) for chunk in tried(Chunks, "chunk_q")})
    k_chunks = sorted({min(chunk, problem.kv_len) for chunk in tried(Chunks, "chunk_k")})
    return [(chunk_q, chunk_k) for chunk_q in q_chunks for chunk_k in k_chunks]


def _steps(problem: AttentionProblem, chunk_q: int, chunk_k: int) -> int:
    return -(-problem.q_len // chunk_q) * -(-problem.kv_len // chunk_k)


def _logits_bytes(problem: AttentionProblem, chunk_q: int, chunk_k: int) -> int:
    rows, columns = min(chunk_q, problem.q_len), min(chunk_k, problem.kv_len)
    return 4 * problem.batch * problem.num_q_heads * rows * columns
