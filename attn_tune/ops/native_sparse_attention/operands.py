"""The array half of one call of attention to selected blocks, and what its two directions exchange."""

from typing import NamedTuple

from jaxtyping import Array, Float, Int

DECIDES_NO_CODE = "the op's contract, whose version is in every signature"


class Operands(NamedTuple):
    """Normalised arrays.

    Query ``t`` stands at position ``t + S - T``, and sees the keys up to its own position of the blocks that it names.
    Block ``i`` holds the keys ``[i block, (i + 1) block)`` of the query's sequence. An entry below zero, or beyond the
    block of the query itself, names nothing, wherever it stands. A block that is named several times counts as often.

    Attributes:
      q, k, v: queries, keys and values.
      indices: for each query and key head the blocks that the queries of the group attend to, in any order.
      cu_seqlens: of packed sequences the first token of each, and the end of the last; tokens behind it see nothing.
    """

    q: Float[Array, "B T N H"]
    k: Float[Array, "B S K H"]
    v: Float[Array, "B S K V"]
    indices: Int[Array, "B T K top"]
    cu_seqlens: Int[Array, " ends"] | None = None


class Residuals(NamedTuple):
    """The residuals that a forward leaves for any kernel's backward.

    Attributes:
      out: the output.
      lse: the natural logarithm of the softmax's denominator, minus infinity for a row that sees nothing.
    """

    out: Float[Array, "B T N V"]
    lse: Float[Array, "B T N"]


class BackwardInputs(NamedTuple):
    """Everything a backward reads.

    Attributes:
      operands: those of the forward.
      residuals: what the forward left.
      dout: the cotangent of the output.
      delta: ``rowsum(dout * out) - dlse`` in float32; the gradient of a logit is ``p * (dout . v - delta)``.
    """

    operands: Operands
    residuals: Residuals
    dout: Float[Array, "B T N V"]
    delta: Float[Array, "B T N"]
