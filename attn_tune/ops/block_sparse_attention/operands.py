"""The array half of one block-sparse call, and what its two directions exchange."""

from typing import NamedTuple

from jaxtyping import Array, Bool, Float, Int

from attn_tune.ops.flash_attention.operands import Residuals

DECIDES_NO_CODE = "the op's contract, whose version is in every signature"


class Operands(NamedTuple):
    """Normalised arrays. Optional ones are None exactly when the problem's flag is off.

    ``block_mask[b, n, r, c]`` lists the pairs of query rows ``[r bq, (r + 1) bq)`` and keys ``[c bk, (c + 1) bk)``; its
    first two axes have size 1 where it broadcasts. A listed pair of blocks is seen as far as causality, window and
    segments allow. Keys and values from ``kv_lengths[b]`` on may be infinite or NaN; all else is finite.

    Attributes:
      q, k, v: queries, keys and values.
      q_segments, kv_segments: ids; a query sees keys of its own id.
      kv_lengths: the number of keys that count, where that is all that the ids say.
    """

    q: Float[Array, "B T N H"]
    k: Float[Array, "B S K H"]
    v: Float[Array, "B S K V"]
    block_mask: Bool[Array, "_b _n R C"]
    q_segments: Int[Array, "B T"] | None = None
    kv_segments: Int[Array, "B S"] | None = None
    kv_lengths: Int[Array, " B"] | None = None


class BackwardInputs(NamedTuple):
    """Everything a backward reads; residuals and ``delta`` are those of ``flash_attention``.

    Attributes:
      operands: those of the forward.
      residuals: what the forward left: the output, and the lse, minus infinity for rows that see nothing.
      dout: the cotangent of the output.
      delta: ``rowsum(dout * out) - dlse`` in float32.
    """

    operands: Operands
    residuals: Residuals
    dout: Float[Array, "B T N V"]
    delta: Float[Array, "B N T"]
