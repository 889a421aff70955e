"""The array half of one call of sparse latent attention."""

from typing import NamedTuple

from jaxtyping import Array, Float, Int

DECIDES_NO_CODE = "the op's contract, whose version is in every signature"


class Operands(NamedTuple):
    """Normalised arrays.

    An index below zero, or of ``S`` and above, names nothing, wherever it stands. A key that a query names several
    times counts as often. Keys that no index of any query names may be anything, not finite too.

    Attributes:
      q: queries, the projection to keys absorbed: a part for the latent, and one for the rotary key.
      kv: of each token its latent, which is the value too, and its rotary key.
      indices: for each query the tokens that it attends to, in any order.
      sinks: one logit a query head.
    """

    q: Float[Array, "B T N H"]
    kv: Float[Array, "B S H"]
    indices: Int[Array, "B T top"]
    sinks: Float[Array, " N"] | None = None
