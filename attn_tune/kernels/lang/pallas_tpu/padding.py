"""From the op's BTNH arrays to the head-major, padded arrays of the kernels, and back."""

from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def pad_axis(x: Array, axis: int, length: int, fill: float = 0) -> Array:
    """``x`` with ``fill`` appended along ``axis`` up to ``length``."""
    if x.shape[axis] == length:
        return x
    widths = [(0, 0)] * x.ndim
    widths[axis] = (0, length - x.shape[axis])
    return jnp.pad(x, widths, constant_values=fill)


@dataclass(frozen=True, kw_only=True, slots=True)
class Fold:
    """The fold of the batch axis into heads or rows, for sequences of ``length`` tokens padded to ``padded``.

    Attributes:
      end_to_end: the sequences lie one after the other, ``[N, B * padded, D]``; otherwise each is a few more heads,
        ``[B * N, padded, D]``.
    """

    batch: int
    length: int
    padded: int
    end_to_end: bool

    def tokens(self, x: Float[Array, "B L N D"]) -> Float[Array, "heads rows D"]:
        """Queries, keys, values; zeros beyond their end."""
        x = pad_axis(x, 1, self.padded)
        if self.end_to_end:
            return x.transpose(2, 0, 1, 3).reshape(x.shape[2], -1, x.shape[3])
        return x.transpose(0, 2, 1, 3).reshape(-1, self.padded, x.shape[3])

    def numbers(self, x: Float[Array, "B N L"], fill: float) -> Float[Array, "heads rows"]:
        """One number a row, ``fill`` beyond their end."""
        x = pad_axis(x, 2, self.padded, fill)
        if self.end_to_end:
            return x.transpose(1, 0, 2).reshape(x.shape[1], -1)
        return x.reshape(-1, self.padded)

    def ids(self, x: Int[Array, "B L"], fill: int) -> Int[Array, " rows"]:
        """Segment ids of sequences that lie end to end."""
        return pad_axis(x, 1, self.padded, fill).reshape(-1)

    def from_tokens(self, x: Float[Array, "heads rows D"]) -> Float[Array, "B L N D"]:
        """The inverse of ``tokens``."""
        if self.end_to_end:
            x = x.reshape(x.shape[0], self.batch, self.padded, x.shape[2]).transpose(1, 2, 0, 3)
        else:
            x = x.reshape(self.batch, -1, self.padded, x.shape[2]).transpose(0, 2, 1, 3)
        return x[:, : self.length]

    def from_numbers(self, x: Float[Array, "heads rows"]) -> Float[Array, "B N L"]:
        """The inverse of ``numbers``."""
        if self.end_to_end:
            x = x.reshape(x.shape[0], self.batch, self.padded).swapaxes(0, 1)
        else:
            x = x.reshape(self.batch, -1, self.padded)
        return x[:, :, : self.length]
