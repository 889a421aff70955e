"""What is in force for a while: ``use_pack`` and pins over the packs of the process; and what a lookup sees of it all.

The overlays live in a context variable, which follows threads and asyncio tasks alike; JAX's own state follows threads
only. ``_in_force_now`` says what happens when the two disagree. Nothing on a lookup's way takes a lock.
"""

import contextlib
import contextvars
import functools
import itertools
import logging
import os
from collections.abc import Hashable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from attn_tune.packs.reader import Pack, read_pack
from attn_tune.runtime import jitkeys, misses, ranks, snapshot
from attn_tune.runtime.locks import Lock
from attn_tune.runtime.pins import Pin
from attn_tune.runtime.quarantine import Quarantine, joined
from attn_tune.runtime.snapshot import Snapshot, current_snapshot, set_lockfile, swap_snapshot
from attn_tune.runtime.sources import Source, overlay_source
from attn_tune.schema.digest import digest_json

# A job asks some hundreds of questions; past this the memo starts anew rather than grow.
MEMO_LIMIT = 65536
INTERN_LIMIT = 64

_log = logging.getLogger("attn_tune")


class Overlays:
    """Packs and pins in force together, innermost first, and the view that goes with them."""

    __slots__ = ("layers", "packs", "pins", "view")

    def __init__(self, layers: tuple[Pack | Pin, ...]):
        self.layers = layers
        self.packs = tuple(layer for layer in layers if isinstance(layer, Pack))
        self.pins = tuple(layer for layer in layers if isinstance(layer, Pin))
        self.view: View | None = None


class View:
    """All that decides an answer, immutable, and the answers found so far, by question."""

    __slots__ = ("_digest", "_quarantine", "agreement", "entries", "overlays", "snapshot")

    def __init__(self, process: Snapshot, overlays: Overlays):
        self.snapshot = process
        self.overlays = overlays
        self.agreement = ranks.Agreement()
        self.entries: dict[Hashable, Any] = {}
        self._quarantine: Quarantine | None = None
        self._digest = ""

    @property
    def quarantine(self) -> Quarantine:
        """What must not run, whoever says so: the lists in files, and those of all packs in force.

        A job with a lockfile reads no pack, and so no list of one.
        """
        if self._quarantine is None:
            lists = [self.snapshot.quarantine]
            if self.snapshot.lockfile is None:
                lists += [source.pack.quarantine for source in self.sources if source.pack]
            self._quarantine = joined(lists)
        return self._quarantine

    @property
    def digest(self) -> str:
        """Names all that decides an answer. Reads the sums of all packs."""
        if not self._digest:
            layers = [
                layer.digest if isinstance(layer, Pack) else layer.line
                for layer in self.overlays.layers
            ]
            self._digest = digest_json([self.snapshot.digest, *layers])
        return self._digest

    @property
    def pins(self) -> tuple[Pin, ...]:
        """The pins in the order they are asked: those of ``with`` blocks, innermost first, then those in files."""
        return (*self.overlays.pins, *self.snapshot.pins.pins)

    @property
    def sources(self) -> tuple[Source, ...]:
        """Where packs are looked for, in order."""
        return (*map(overlay_source, self.overlays.packs), *self.snapshot.sources)

    def put[T](self, key: Hashable, value: T) -> T:
        """Remembers an answer; returns the one to use, which is another thread's if that was first."""
        if len(self.entries) >= MEMO_LIMIT:
            self.entries = {}
        return self.entries.setdefault(key, value)


_NONE = Overlays(())
_interned: dict[tuple[Pack | Pin, ...], Overlays] = {}
_overlays: contextvars.ContextVar[Overlays] = contextvars.ContextVar(
    "attn_tune_overlays", default=_NONE
)
# The view of an earlier trace, which lookups of its compilation use.
_earlier: contextvars.ContextVar["View | None"] = contextvars.ContextVar(
    "attn_tune_earlier_view", default=None
)
# Until a pack, a pin or an earlier view is first put here, neither the context variables nor the jit key hold any.
_ever_used = False

_swaps = itertools.count(1)
_reload_lock = Lock()


def use_pack(pack: str | os.PathLike[str] | Pack) -> AbstractContextManager[Pack]:
    """Puts a pack in front of all others within a ``with`` block; the innermost is asked first.

    Functions under ``jax.jit`` retrace when they enter with a pack they have not seen, and only then.

    Raises:
      StorageError, IntegrityError: at once, if the pack cannot be read.
    """
    return in_force(pack if isinstance(pack, Pack) else read_pack(pack))


def reload() -> bool:
    """Reads packs, pins, quarantine and lockfile anew from where the environment variables point; True if that changed
    anything. Jitted functions retrace on their next call if it did.

    The miss mode is read too, but changes no answer: it holds for lookups from now on, and nothing retraces for it.

    Raises:
      UsageError: a variable has a value that it cannot have; what was in force stays.
      StorageError, IntegrityError: the lockfile cannot be used; what was in force stays.
      DisagreementError: the processes of the job, which must all reload, would now choose differently.
    """
    # One at a time, or the key of one would meet the packs of another.
    with _reload_lock:
        mode = misses.mode_of(os.environ)
        old, new = swap_snapshot()
        misses.take_mode(mode)
        is_new = old is not None and old is not new
        if is_new and (keys := jit_keys()):
            # Never a key of before, even for packs of before: a trace that was under way during the swap may hold some
            # of either under its old key, which nothing may find again.
            keys.snapshot.set_global((new.digest, next(_swaps)))
        ranks.next_round()
        ranks.check(current_view())
    return is_new


def use_lockfile(path: str | os.PathLike[str] | None) -> None:
    """From now on every lookup of the process is answered by this lockfile alone; None ends that.

    Instead of the environment variable ``ATTN_TUNE_LOCKFILE``. Jitted functions retrace.

    Raises:
      StorageError, IntegrityError: it cannot be used; what was in force stays.
    """
    before = set_lockfile("" if path is None else os.fspath(path))
    try:
        reload()
    except BaseException:
        set_lockfile(before)
        raise


@contextlib.contextmanager
def in_force[Layer: (Pack, Pin)](layer: Layer) -> Iterator[Layer]:
    """Puts one pack or pin in force within a ``with`` block."""
    global _ever_used
    _ever_used = True
    before = _overlays.get()
    _overlays.set(_intern((layer, *before.layers)))
    _sync()
    try:
        yield layer
    finally:
        # Not by a token: a finaliser may run in another context than the one that entered.
        _overlays.set(before)
        _sync()


def current_view() -> View:
    """What a lookup must go by here and now."""
    overlays = _NONE
    if _ever_used:
        if (earlier := _earlier.get()) is not None:
            return earlier
        overlays = _in_force_now()
    view = overlays.view
    if view is None or view.snapshot is not snapshot._current:
        view = overlays.view = View(current_snapshot(), overlays)
    return view


@contextlib.contextmanager
def viewing(view: View) -> Iterator[None]:
    """Answer lookups from ``view`` within a ``with`` block.

    For lookups while XLA compiles, which may be long after the trace.
    """
    global _ever_used
    _ever_used = True
    token = _earlier.set(view)
    try:
        yield
    finally:
        _earlier.reset(token)


def jit_keys() -> jitkeys.JitKeys | None:
    """JAX's user contexts, None as long as nobody has imported jax.

    Importing this module after jax makes them. Made later, they cost whatever is being traced then one retrace.
    """
    if jitkeys.keys is None and jitkeys.make():
        _sync()
    return jitkeys.keys


def _in_force_now() -> Overlays:
    """The overlays that a lookup must use.

    Within a trace they are those the jit key names, even if an asyncio task that held ``use_pack`` across an ``await``
    left another task's key on this thread: a cached trace must hold what its key says. Outside a trace the key is put
    right first.
    """
    wanted = _overlays.get()
    keys = jit_keys()
    if keys is None:
        return wanted
    keyed: tuple[Pack | Pin, ...] = keys.overlays.value
    if keyed is wanted.layers or keyed == wanted.layers:
        return wanted
    if not jitkeys.tracing():
        _sync()
        return wanted
    _warn_once()
    return _intern(keyed)


def _intern(layers: tuple[Pack | Pin, ...]) -> Overlays:
    """One object for equal overlays, so that a block entered anew finds its answers again."""
    if not layers:
        return _NONE
    found = _interned.get(layers)
    if found is None:
        if len(_interned) >= INTERN_LIMIT:
            _interned.clear()
        found = _interned.setdefault(layers, Overlays(layers))
    return found


def _sync() -> None:
    """Makes this thread's jit key say what the context variable says."""
    keys = jit_keys()
    if keys is None:
        return
    layers = _overlays.get().layers
    if keys.overlays.value != layers:
        # Entered and never left: leaving would bring back what was there before, which in interleaved asyncio tasks
        # is another task's key. The context variable alone knows what comes next.
        keys.overlays(layers).__enter__()


@functools.cache
def _warn_once() -> None:
    _log.warning(
        "use_pack was entered in another asyncio task or thread than the one that traces; "
        "enter it where the jitted function is called, without an await in between"
    )


# An op imports jax before it imports this, so its functions are traced with the keys in place from the start.
jit_keys()
