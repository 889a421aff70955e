"""Whether a job takes kernels whose results may differ in their last bits from run to run.

A sum of floats by atomics depends on the order in which programs happen to arrive. ``ATTN_TUNE_DETERMINISTIC`` says
what a job thinks of that; which kernels it concerns, they declare themselves.
"""

import enum
from collections.abc import Mapping

from attn_tune.schema.errors import UsageError

VARIABLE = "ATTN_TUNE_DETERMINISTIC"


class Determinism(enum.StrEnum):
    """The determinism that a job asks for.

    ``REQUIRED`` (``1``): no such kernel runs, not even one asked for by name. ``USUAL`` (the default): one runs if it
    is asked for by name, and is never the answer to an open question. ``WAIVED`` (``0``): it answers open questions
    too: where a pack says that it is the best, and untuned where it is the first of its op's order.
    """

    REQUIRED = "required"
    USUAL = "usual"
    WAIVED = "waived"


_VALUES = {"1": Determinism.REQUIRED, "": Determinism.USUAL, "0": Determinism.WAIVED}


def determinism_of(environ: Mapping[str, str]) -> Determinism:
    """Reads the determinism that the environment variable asks for.

    Raises:
      UsageError: it is neither 1 nor 0; to guess would be to break a promise.
    """
    value = environ.get(VARIABLE, "")
    if value not in _VALUES:
        raise UsageError(
            f"{VARIABLE} must be 1 (nothing that is not deterministic), 0 (what is fastest) or unset, got {value!r}"
        )
    return _VALUES[value]
