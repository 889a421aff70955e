"""Checks of the arguments that calls of native sparse attention share."""

from typing import Any

from attn_tune.ops.fields.integers import as_integer
from attn_tune.schema.errors import UsageError, shown


def checked_block_size(block_size: Any) -> int:
    """The keys of a block, an integer; the problem refuses those that no kernel has.

    Raises:
      UsageError: it is something else.
    """
    size = as_integer(block_size)
    if size is None:
        raise UsageError(f"block_size must be an integer, got {shown(block_size)}")
    return size
