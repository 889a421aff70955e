"""The array half of one flash-attention call, and what the two directions exchange."""

from typing import NamedTuple

from jaxtyping import Array, Bool, Float, Int, UInt32

DECIDES_NO_CODE = "the op's contract, whose version is in every signature"


class Operands(NamedTuple):
    """Normalised arrays. Optional ones are None exactly when the problem's flag is off.

    ``bias`` and ``mask`` are 4-D with size 1 where they broadcast (``Problem.bias_dims``). ``sinks`` is float32, one
    logit a query head. ``dropout`` is three words: seed, first batch index, first query head of this shard, so that a
    sharded call drops the same weights as a whole one. ``kv_lengths`` says what the segments say, for kernels that take
    padding as lengths: keys ``[0, kv_lengths[b])`` count, for every query. Keys and values beyond them may be infinite
    or NaN; all else is finite. ``q_offsets`` and ``kv_offsets`` say what segments and positions say, for kernels that
    take sequences end to end: sequence ``r`` has the tokens from entry ``r`` to the next, and the ends of its queries
    and keys meet; behind the last entry is padding.

    Attributes:
      q, k, v: queries, keys and values.
      q_segments, kv_segments: ids; a query sees keys of its own id.
      q_positions, kv_positions: positions, which causality and windows read instead of indices.
    """

    q: Float[Array, "B T N H"]
    k: Float[Array, "B S K H"]
    v: Float[Array, "B S K V"]
    bias: Float[Array, "_b _n _t _s"] | None = None
    mask: Bool[Array, "_b _n _t _s"] | None = None
    q_segments: Int[Array, "B T"] | None = None
    kv_segments: Int[Array, "B S"] | None = None
    q_positions: Int[Array, "B T"] | None = None
    kv_positions: Int[Array, "B S"] | None = None
    sinks: Float[Array, " N"] | None = None
    dropout: UInt32[Array, " 3"] | None = None
    kv_lengths: Int[Array, " B"] | None = None
    q_offsets: Int[Array, " R"] | None = None
    kv_offsets: Int[Array, " R"] | None = None


class Residuals(NamedTuple):
    """The residuals that a forward leaves for any kernel's backward.

    ``out`` is the normalised output. ``lse`` is the natural logarithm of the softmax denominator, sinks included;
    minus infinity for a fully masked row, whose output and gradients are zero.
    """

    out: Float[Array, "B T N V"]
    lse: Float[Array, "B N T"]


class BackwardInputs(NamedTuple):
    """Everything a backward reads: ``delta = rowsum(dout * out) - dlse`` in float32 is computed once for all launches.

    The gradient of a logit is ``p * (dp - delta)`` with ``p = exp(logit - lse)`` and ``dp = dout . v``
    (FlashAttention-2, arXiv 2307.08691, algorithm 2; the ``dlse`` term is the derivative of the returned lse).

    Attributes:
      operands: those of the forward.
      residuals: what the forward left.
    """

    operands: Operands
    residuals: Residuals
    dout: Float[Array, "B T N V"]
    delta: Float[Array, "B N T"]
