"""Profiles of lengths that ops share: how long the sequences of a batch are.

A profile fixes the multiset of lengths and the seed shuffles it, so that operations and bytes of a problem are the same
for every seed and known without arrays.
"""

import math

from attn_tune.ops.contract import Workload
from attn_tune.schema.errors import unknown_name

LENGTHS = (
    Workload(name="eq", summary="all sequences have the largest length"),
    Workload(name="uni", summary="lengths spread evenly from one to the largest"),
    Workload(name="exp", summary="many short sequences and a long tail: quantiles of an exponential"),
    Workload(name="one", summary="one sequence of the largest length, all others a sixteenth of it"),
)
# The quantile of the last sequence of ``exp`` is the largest length, that of a mean length this share of it.
_EXP_MEAN = 0.25
_SHORT = 16


def profile_lengths(profile: str, count: int, largest: int) -> tuple[int, ...]:
    """The ``count`` lengths of a profile, ascending, each between 1 and ``largest``.

    Raises:
      UsageError: no profile has this name.
    """
    quantiles = [(i + 1) / count for i in range(count)]
    match profile:
        case "eq":
            lengths = [largest] * count
        case "uni":
            lengths = [round(q * largest) for q in quantiles]
        case "exp":
            # The last quantile is taken half a sequence earlier: an exponential has no largest value.
            lengths = [round(-_EXP_MEAN * largest * math.log(1 - (i + 0.5) / count)) for i in range(count)]
            lengths[-1] = largest
        case "one":
            lengths = [largest // _SHORT] * (count - 1) + [largest]
        case _:
            raise unknown_name("workload", profile, [w.name for w in LENGTHS])
    return tuple(sorted(min(max(1, n), largest) for n in lengths))
