"""The compile-time constants of the launches, and the decays of a chunk with one gate a token."""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportOperatorIssue=false

import dataclasses
from dataclasses import dataclass

import triton
import triton.language as tl

from attn_tune.kernels.lang.recurrent import Recurrent
from attn_tune.kernels.lang.triton.chunks import static as chunks
from attn_tune.kernels.lang.triton.chunks.decays import RESET
from attn_tune.kernels.lang.triton.chunks.static import load_numbers
from attn_tune.kernels.lang.triton.chunks.wide import parts_of
from attn_tune.kernels.lang.triton.device.tile import LOG2E
from attn_tune.kernels.lang.triton.linear.config import BackwardConfig, ForwardConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class Static(chunks.Static):
    """Those of all launches in chunks, and the gates.

    Attributes:
      gate: ``none``, ``constant``, ``head`` or ``channel``, as of the problem.
      levels: how often a chunk can be halved.
      state_parts: arrays of the working dtype whose sum is a state that a backward keeps. One has roundings that
        gradients of gates, which are sums of terms of both signs, cannot bear.
    """

    gate: str
    levels: int
    state_parts: int


def static_of(
    problem: Recurrent,
    config: ForwardConfig | BackwardConfig,
    block_v: int,
    segments: int = 1,
    turned: bool = False,
) -> Static:
    """The constants of launches with this many columns of the state a program."""
    shared = chunks.static_of(problem, config, block_v, segments, turned)
    values = {field.name: getattr(shared, field.name) for field in dataclasses.fields(shared)}
    has_gate_gradients = isinstance(config, BackwardConfig) and problem.gate != "none"
    return Static(
        **values,
        gate=problem.gate,
        levels=config.chunk.bit_length() - 1,
        state_parts=parts_of(shared) if has_gate_gradients else 1,
    )


@triton.jit
def log_gates(g, start, end, head, static: tl.constexpr):
    """Base-2 logarithms of a chunk's gates, and ones at resets, where the logarithm is zero; both zero from ``end`` on.

    A gate below ``RESET`` forgets everything. Counted apart, its logarithm does not swallow those of other tokens.
    """
    if static.gate == "constant":
        token = start + tl.arange(0, static.chunk)
        gates = tl.where(token < end, tl.load(g + head), 0.0)
    else:
        gates = load_numbers(g, start, end, head, static.heads, static.chunk, 0.0)
    return tl.where(gates < RESET, 0.0, gates * LOG2E), (gates < RESET).to(tl.int32)


@triton.jit
def decays_from_start(gates, resets):
    """The decay from the start of the chunk to each token, its own gate included."""
    return tl.exp2(tl.where(tl.cumsum(resets, 0) == 0, tl.cumsum(gates, 0), float("-inf")))


@triton.jit
def decays_to_end(gates, resets, static: tl.constexpr):
    """The decay from each token, its own gate left out, to the end of the chunk; and that of the whole chunk."""
    later = tl.sum(resets, 0) - tl.cumsum(resets, 0)
    total = tl.sum(gates, 0)
    if static.is_wide:
        # The difference of two sums has the rounding of strong gates before both.
        row = tl.arange(0, static.chunk)[:, None]
        col = tl.arange(0, static.chunk)[None, :]
        logs = tl.sum(tl.where(row > col, gates[:, None], 0.0), 0)
    else:
        logs = tl.minimum(total - tl.cumsum(gates, 0), 0.0)
    whole = tl.exp2(tl.where(tl.sum(resets, 0) == 0, total, float("-inf")))
    return tl.exp2(tl.where(later == 0, logs, float("-inf"))), whole
