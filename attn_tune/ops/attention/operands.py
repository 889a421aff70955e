"""The array half of one dense ``attention`` call."""

from typing import NamedTuple

from jaxtyping import Array, Bool, Float, Key

DECIDES_NO_CODE = "the op's contract, whose version is in every signature"


class Operands(NamedTuple):
    """Normalised arrays; optional ones are None exactly when the problem's flag is off.

    ``bias`` and ``mask`` are 4-D with size 1 where they broadcast; ``sinks`` is float32; ``dropout`` is a key.

    Attributes:
      q, k, v: queries, keys and values.
    """

    q: Float[Array, "B T N H"]
    k: Float[Array, "B S K H"]
    v: Float[Array, "B S K V"]
    bias: Float[Array, "_b _n _t _s"] | None = None
    mask: Bool[Array, "_b _n _t _s"] | None = None
    sinks: Float[Array, " N"] | None = None
    dropout: Key[Array, ""] | None = None


class BackwardInputs(NamedTuple):
    """The operands and the cotangents of both outputs.

    Attributes:
      operands: those of the forward.
      dout: the cotangent of the output.
      dweights: the cotangent of the weights.
    """

    operands: Operands
    dout: Float[Array, "B T N V"]
    dweights: Float[Array, "B N T S"]
