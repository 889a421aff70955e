"""The part of JAX's jit key that the lookup owns: a function is traced again when its packs or overrides change.

Two user contexts: the digest of the process's settings (global), and the layers of ``with`` blocks (per thread).
"""

import importlib
import sys
from typing import Any

from attn_tune.runtime.locks import Lock

_lock = Lock()


class JitKeys:
    """JAX's user contexts, made once in a process: making one changes every jit key."""

    def __init__(self) -> None:
        import jax

        # ``tracing`` needs it. Importing it registers JAX options, which are part of every jit key too: now, so that
        # what is traced after this is not traced again when a block is first entered.
        importlib.import_module("jax.extend.core")
        # jax leaves the type of its contexts unknown.
        self.settings: Any = jax.make_user_context(None)  # pyright: ignore[reportUnknownMemberType]
        self.layers: Any = jax.make_user_context(())  # pyright: ignore[reportUnknownMemberType]


keys: JitKeys | None = None


def make() -> bool:
    """Makes the user contexts unless jax is not imported yet or they are there; True if this call made them."""
    global keys
    if "jax" not in sys.modules:
        return False
    with _lock:
        if keys is not None:
            return False
        keys = JitKeys()
        return True


def tracing() -> bool:
    """Whether this thread is inside a trace."""
    # Not as ``jax.extend.core``: while another thread imports it, ``jax`` lacks the attribute.
    from jax.extend import core

    # Its name promises nothing for later versions. Without it every lookup obeys the key, which is never wrong.
    probe = getattr(core, "unsafe_am_i_under_a_jit_DO_NOT_USE", None)
    return probe is None or probe()
