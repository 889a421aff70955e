"""The decays between the tokens of a chunk with one gate a token."""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportOperatorIssue=false

import triton
import triton.language as tl

# The factor of a lower gate is no normal number of float32, and exponentials of GPUs make it zero.
RESET = tl.constexpr(-87.0)


@triton.jit
def decays_between(gates, resets, TRANSPOSED: tl.constexpr, static: tl.constexpr):
    """The decay from each token (columns) to each later one (rows), one on the diagonal, and zero above it.

    Args:
      gates: base-2 logarithms ``[chunk]``, zero at resets.
      resets: ones ``[chunk]`` at the tokens before which everything is forgotten.
      TRANSPOSED: rows are columns.
    """
    row = tl.arange(0, static.chunk)[:, None]
    col = tl.arange(0, static.chunk)[None, :]
    passed = tl.cumsum(resets, 0)
    if static.is_wide:
        # The difference of two sums has the rounding of strong gates before both.
        if TRANSPOSED:
            logs = tl.cumsum(tl.where(col > row, gates[None, :], 0.0), 1)
        else:
            logs = tl.cumsum(tl.where(row > col, gates[:, None], 0.0), 0)
    else:
        sums = tl.cumsum(gates, 0)
        if TRANSPOSED:
            logs = tl.minimum(sums[None, :] - sums[:, None], 0.0)
        else:
            logs = tl.minimum(sums[:, None] - sums[None, :], 0.0)
    is_later = col >= row if TRANSPOSED else row >= col
    return tl.exp2(tl.where(is_later & (passed[:, None] == passed[None, :]), logs, float("-inf")))
