"""The log of jobs: one logger of the standard library, whose messages name this program.

A job that sets up no logging sees them bare on stderr, among those of other libraries.
"""

import contextlib
import functools
import logging
import os
import sys
from collections.abc import MutableMapping
from typing import Any

NAME = "attn_tune"
_PACKAGE = os.path.dirname(os.path.dirname(__file__)) + os.sep


class _Log(logging.LoggerAdapter[logging.Logger]):
    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """The message behind the program's name, at the line of the job that led here."""
        return f"attn-tune: {msg}", {"stacklevel": _depth(), **kwargs}


log = _Log(logging.getLogger(NAME))


def other_code() -> tuple[str, ...]:
    """Beginnings of the paths of files that are not the job's: of this package, of JAX where it is loaded, and of the
    modules of Python that call functions for both.
    """
    found = (getattr(sys.modules.get(name), "__file__", None) for name in ("jax", "jaxlib"))
    between = (functools.__file__, contextlib.__file__)
    return (_PACKAGE, *between, *(os.path.dirname(file) + os.sep for file in found if file))


def _depth() -> int:
    """The ``stacklevel`` of the job's innermost frame; 1, the line that logs, where there is none."""
    # This function and ``process`` are no callers.
    others, depth, frame = other_code(), -2, logging.currentframe()
    while frame is not None:
        file = frame.f_code.co_filename
        # Frames that logging does not count either.
        if file != logging.__file__ and "importlib._bootstrap" not in file:
            depth += 1
            if not file.startswith(others):
                return depth
        frame = frame.f_back
    return 1
