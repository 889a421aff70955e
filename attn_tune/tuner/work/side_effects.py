"""A check that a config has no side effect as it runs: no call into Python."""

import os
import re

from attn_tune.schema.errors import UnsupportedError

# True in tests of isolation alone: their kernels do harm in callbacks.
callbacks_allowed = False
# Triton's interpreter is a callback.
_INTERPRETED = ("triton", "TRITON_INTERPRET")
# From the start of a word on: the text of a large constant is one word, to be read once.
_CALLBACK = re.compile(r"\b\w*python_\w*callback")


def find_callback(program: str) -> str:
    """The target of the first call into Python in the text of a lowered module; empty without one."""
    found = _CALLBACK.search(program)
    return found.group() if found else ""


def refuse_callbacks(program: str, backend: str) -> None:
    """Refuse the text of a lowered module of a kernel of ``backend`` if it calls back into Python.

    The environment variable of Triton's interpreter allows it for Triton kernels.

    Raises:
      UnsupportedError: it calls back.
    """
    target = find_callback(program)
    interpreted = backend == _INTERPRETED[0] and os.environ.get(_INTERPRETED[1]) == "1"
    if target and not interpreted and not callbacks_allowed:
        raise UnsupportedError(
            f"its program calls back into Python ({target}): what that does can neither be proven nor timed; take "
            "jax.pure_callback, jax.experimental.io_callback and jax.debug out of the kernel"
        )
