"""The array half of one call of the indexer."""

from typing import NamedTuple

from jaxtyping import Array, Float, Int

DECIDES_NO_CODE = "the op's contract, whose version is in every signature"


class Operands(NamedTuple):
    """Normalised arrays.

    Query ``t`` scores the keys of ``[starts, ends)``, cut to ``[0, S)``; none where that is empty. Keys in no query's
    range may be anything, not finite too.

    Attributes:
      q: the index heads of each query.
      k: one index key a token.
      weights: what each head of a query counts.
      starts: the first key that a query scores.
      ends: the key behind the last one.
    """

    q: Float[Array, "B T N H"]
    k: Float[Array, "B S H"]
    weights: Float[Array, "B T N"]
    starts: Int[Array, "B T"]
    ends: Int[Array, "B T"]
