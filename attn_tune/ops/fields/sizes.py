"""A check of the sizes of problems. It needs no numpy, as lookups do not."""

from collections.abc import Mapping
from typing import Any

from attn_tune.schema.errors import UsageError


def check_sizes(problem: Any, words: Mapping[str, str]) -> None:
    """Check that attributes of a problem are positive integers.

    Args:
      words: the signature's word by the attribute's name, for the message.

    Raises:
      UsageError: one is not.
    """
    for name, word in words.items():
        value = getattr(problem, name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            is_symbolic = hasattr(value, "scope")  # as those of jax.export.symbolic_shape
            more = "; sizes decide the kernel, so none may be symbolic: export a program for each" * is_symbolic
            what = f"{name}={value}" if is_symbolic else f"{word}={value!r} ({name})"
            raise UsageError(f"{what} must be a positive integer{more}")
