"""Packs in force for a while: ``use_pack``, and the jit keys that make JAX retrace when the packs change.

Two user contexts are part of JAX's jit key: the digest of the process's snapshot (global), and the digests of the
overlays in force (per thread). The overlays themselves live in a context variable, which follows threads and asyncio
tasks alike; JAX's own state follows threads only. ``active_overlays`` says what happens when the two disagree.
"""

import contextlib
import contextvars
import functools
import logging
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager

from attn_tune.runtime.packs import Pack, read_pack
from attn_tune.runtime.snapshot import swap_snapshot

_log = logging.getLogger("attn_tune")
_overlays: contextvars.ContextVar[tuple[Pack, ...]] = contextvars.ContextVar(
    "attn_tune_overlays", default=()
)
_lock = threading.Lock()


def use_pack(pack: str | os.PathLike[str] | Pack) -> AbstractContextManager[Pack]:
    """Puts a pack in front of all others within a ``with`` block; the innermost is asked first.

    Functions under ``jax.jit`` retrace when they enter with a pack they have not seen, and only then.

    Raises:
      StorageError, IntegrityError: at once, if the pack cannot be read.
    """
    return _in_force(pack if isinstance(pack, Pack) else read_pack(pack))


def reload() -> bool:
    """Reads all packs anew from where the environment variables point; True if that changed anything.

    Jitted functions retrace on their next call if it did.
    """
    old, new = swap_snapshot()
    if old is None or old.digest == new.digest:
        return False
    if keys := jit_keys():
        keys.snapshot.set_global(new.digest)
    return True


@contextlib.contextmanager
def _in_force(pack: Pack) -> Iterator[Pack]:
    before = _overlays.get()
    _overlays.set((pack, *before))
    _sync()
    try:
        yield pack
    finally:
        # Not by a token: a finaliser may run in another context than the one that entered.
        _overlays.set(before)
        _sync()


class JitKeys:
    """JAX's user contexts, made once in a process: making one changes every jit key."""

    def __init__(self) -> None:
        import jax

        # Importing it registers JAX options, which are part of every jit key too: now, not in the middle of a trace.
        import jax.extend.core

        self.snapshot = jax.make_user_context(None)
        self.overlays = jax.make_user_context(())


_keys: JitKeys | None = None


def jit_keys() -> JitKeys | None:
    """The user contexts, None as long as nobody has imported jax.

    Importing this module after jax makes them. Made later, they cost whatever is being traced then one retrace.
    """
    global _keys
    if _keys is None and "jax" in sys.modules:
        with _lock:
            if _keys is None:
                _keys = JitKeys()
        _sync()
    return _keys


def active_overlays() -> tuple[Pack, ...]:
    """The overlays a lookup must use now, innermost first.

    Within a trace they are those the jit key names, even if an asyncio task that held ``use_pack`` across an ``await``
    left another task's key on this thread: a cached trace must hold what its key says. Outside a trace the key is put
    right first.
    """
    wanted = _overlays.get()
    keys = jit_keys()
    if keys is None:
        return wanted
    keyed: tuple[Pack, ...] = keys.overlays.value
    if keyed == wanted:
        return wanted
    if not _tracing():
        _sync()
        return wanted
    _warn_once()
    return keyed


def _sync() -> None:
    """Makes this thread's jit key say what the context variable says."""
    keys = jit_keys()
    if keys is None:
        return
    packs = _overlays.get()
    if keys.overlays.value != packs:
        # Entered and never left: leaving would bring back what was there before, which in interleaved asyncio tasks
        # is another task's key. The context variable alone knows what comes next.
        keys.overlays(packs).__enter__()


@functools.cache
def _warn_once() -> None:
    _log.warning(
        "use_pack was entered in another asyncio task or thread than the one that traces; "
        "enter it where the jitted function is called, without an await in between"
    )


def _tracing() -> bool:
    import jax.extend.core

    # Its name promises nothing for later versions. Without it every lookup obeys the key, which is never wrong.
    probe = getattr(jax.extend.core, "unsafe_am_i_under_a_jit_DO_NOT_USE", None)
    return probe is None or probe()


# An op imports jax before it imports this, so its functions are traced with the keys in place from the start.
jit_keys()
