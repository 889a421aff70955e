"""Whether a job takes stored rows whose config ran no feature problem of its op."""

from collections.abc import Mapping

from attn_tune.schema.errors import UsageError, shown

VARIABLE = "ATTN_TUNE_UNPROVEN"


def takes_unproven(environ: Mapping[str, str]) -> bool:
    """Whether the environment variable allows such rows.

    Raises:
      UsageError: it is neither 1, 0 nor unset.
    """
    value = environ.get(VARIABLE, "")
    if value not in ("", "0", "1"):
        raise UsageError(f"{VARIABLE} must be 1 (rows that are unproven too), 0 or unset, got {shown(value)}")
    return value == "1"
