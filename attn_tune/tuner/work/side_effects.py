"""Checks that a config has no side effects: no call into Python when it runs, no change to JAX when it is traced."""

import contextlib
import os
import re
from collections.abc import Iterator

from attn_tune.schema.errors import UnsupportedError

# True in tests of isolation alone: their kernels do harm in callbacks.
callbacks_allowed = False
# Triton's interpreter is a callback.
_INTERPRETED = ("triton", "TRITON_INTERPRET")
# From the start of a word on: the text of a large constant is one word, to be read once.
_CALLBACK = re.compile(r"\b\w*python_\w*callback")


class ChangedConfigError(UnsupportedError):
    """A config changed JAX's configuration. ``stays``: the process still has the change."""

    def __init__(self, message: str, *, stays: bool):
        super().__init__(message)
        self.stays = stays


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


@contextlib.contextmanager
def unchanged_configuration() -> Iterator[None]:
    """Restore JAX's configuration, so that no later config is traced under another.

    Raises:
      ChangedConfigError: an option was changed inside.
    """
    import jax

    before = jax.config.values
    try:
        yield
    finally:
        changed = _changed(before)
        for name in changed:
            jax.config.update(name, before[name])
    if changed:
        # A value that one thread has set for itself cannot be reset from outside.
        options = ", ".join(f"{name} to {value!r}" for name, value in changed.items())
        raise ChangedConfigError(
            f"tracing it sets options of JAX ({options}), which every config after it would be traced under; use the "
            "context managers of JAX, which end",
            stays=bool(_changed(before)),
        )


def _changed(before: dict[str, object]) -> dict[str, object]:
    """The options that have another value now; those that an import has added since do not count."""
    import jax

    return {name: value for name, value in jax.config.values.items() if before.get(name, value) != value}
