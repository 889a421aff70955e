"""Checks of the arguments that calls of native sparse attention share."""

import operator
from typing import Any

from attn_tune.schema.errors import UsageError, shown


def checked_block_size(block_size: Any) -> int:
    """The keys of a block, an integer; the problem refuses those that no kernel has.

    Raises:
      UsageError: it is something else.
    """
    try:
        if not isinstance(block_size, bool):
            return operator.index(block_size)
    except TypeError:  # no integer, or a traced one
        pass
    raise UsageError(f"block_size must be an integer, got {shown(block_size)}")
