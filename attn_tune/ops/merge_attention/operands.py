"""The array half of one merge."""

from typing import NamedTuple

from jaxtyping import Array, Float

DECIDES_NO_CODE = "the op's contract, whose version is in every signature"


class Operands(NamedTuple):
    """The output and the natural lse of each part, in arrays of their own: callers have no stack, which is a copy.

    A part whose lse is minus infinity saw no key: it counts for nothing, and its output may be anything. An lse that is
    not a number or plus infinity makes the output and the lse of its row not a number. Outputs of all other parts are
    finite.

    Attributes:
      out0, lse0: the output and the natural logarithm of the softmax's denominator of the first part.
      out1, lse1: those of the second part.
      out2, lse2: those of the third part, or None.
      out3, lse3: those of the fourth part, or None.
    """

    out0: Float[Array, "rows N V"]
    lse0: Float[Array, "rows N"]
    out1: Float[Array, "rows N V"]
    lse1: Float[Array, "rows N"]
    out2: Float[Array, "rows N V"] | None = None
    lse2: Float[Array, "rows N"] | None = None
    out3: Float[Array, "rows N V"] | None = None
    lse3: Float[Array, "rows N"] | None = None

    @property
    def parts(self) -> list[tuple[Float[Array, "rows N V"], Float[Array, "rows N"]]]:
        """The output and the lse of each part that there is."""
        pairs = ((self.out0, self.lse0), (self.out1, self.lse1), (self.out2, self.lse2), (self.out3, self.lse3))
        return [(out, lse) for out, lse in pairs if out is not None and lse is not None]
