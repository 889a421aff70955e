"""Packs and overrides of ``with`` blocks over the settings of the process, and the view that lookups use.

They live in a context variable, which follows threads and asyncio tasks alike; JAX's own state follows threads only.
``_in_force_now`` says what happens when the two disagree. Nothing on a lookup's way takes a lock.
"""

import contextlib
import contextvars
import functools
import itertools
import os
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager

from attn_tune.packs.override_files import OverridesFile, read_overrides
from attn_tune.packs.reader import Pack, read_pack
from attn_tune.runtime import misses, rank_agreement
from attn_tune.runtime.active import jit_key, settings
from attn_tune.runtime.active.names import read_named_pack
from attn_tune.runtime.active.settings import current_settings, swap_settings
from attn_tune.runtime.active.view import Layer, Layers, View
from attn_tune.runtime.locks import Lock
from attn_tune.schema.errors import AttnTuneError
from attn_tune.schema.logs import log

INTERN_LIMIT = 64


_NONE = Layers()
_layers: contextvars.ContextVar[Layers] = contextvars.ContextVar("attn_tune_layers", default=_NONE)
# The view of an earlier trace, which lookups of its compilation use.
_earlier: contextvars.ContextVar[View | None] = contextvars.ContextVar("attn_tune_earlier_view", default=None)
# Until a layer or an earlier view is first put here, neither the context variables nor the jit key hold any.
_ever_used = False

_swaps = itertools.count(1)
_reload_lock = Lock()


def use_pack(pack: str | os.PathLike[str] | Pack) -> AbstractContextManager[Pack]:
    """Put a pack in front of all others within a ``with`` block; the innermost is asked first.

    A text is a path, or the name of a pack that calls find here, such as ``"nvidia-h200"``; what lies at the path goes
    first. Functions under ``jax.jit`` retrace when they enter with a pack they have not seen, and only then.

    Raises:
      UsageError, StorageError, IntegrityError: at once, if the text is empty, or there is no such pack, or it cannot be
        read.
    """
    match pack:
        case Pack():
            return in_force(pack)
        case str():
            return in_force(read_named_pack(pack))
        case _:
            return in_force(read_pack(pack))


def use_overrides(path: str | os.PathLike[str]) -> AbstractContextManager[OverridesFile]:
    """Put a file of overrides in front of all others within a ``with`` block; the innermost is asked first.

    Its ``never`` entries hold too, and if it is ``only``, as ``freeze`` writes it, nothing but such files answers.
    Jitted functions retrace as with ``use_pack``.

    Raises:
      StorageError, IntegrityError: at once, if the file cannot be read.
    """
    return in_force(read_overrides(path))


def reload() -> bool:
    """Read packs and overrides again from where the environment variables point; True if that changed anything.

    Jitted functions retrace on their next call if it did. The miss mode is read too, but changes no answer: it holds
    for lookups from now on, and nothing retraces for it.

    Raises:
      UsageError: a variable has a value that it cannot have; what was active stays.
      StorageError, IntegrityError: a file of overrides cannot be read; what was active stays.
      DisagreementError: the processes of the job, which must all reload, would now choose differently.
    """
    # One at a time, or the key of one would meet the packs of another.
    with _reload_lock:
        try:
            mode = misses.mode_of(os.environ)
            old, new = swap_settings()
        except AttnTuneError as error:
            # The others have read theirs: their next comparison is this process's next too.
            rank_agreement.next_round()
            rank_agreement.report_unusable(error)
            raise
        misses.take_mode(mode)
        is_new = old is not None and old is not new
        if is_new and (keys := jit_keys()):
            # Never a key of before, even for packs of before: a trace that was under way during the swap may hold some
            # of either under its old key, which nothing may find again.
            keys.settings.set_global((new.digest, next(_swaps)))
        rank_agreement.next_round()
        rank_agreement.check(current_view())
    return is_new


@contextlib.contextmanager
def in_force[T: (Pack, OverridesFile)](layer: T) -> Generator[T]:
    """Activate one pack or one file of overrides within a ``with`` block."""
    _activate(_intern((layer, *_layers.get().layers)))
    try:
        yield layer
    finally:
        # Its own and no other: blocks of generators end in any order, and a finaliser may run in another context than
        # the one that entered, which has no such layer.
        rest = list(_layers.get().layers)
        if layer in rest:
            rest.remove(layer)
        _activate(_intern(tuple(rest)))


@contextlib.contextmanager
def _with_layers(layers: Layers) -> Generator[None]:
    """Activate these layers and no others within a ``with`` block."""
    before = _layers.get()
    _activate(layers)
    try:
        yield
    finally:
        _activate(before)


def _activate(layers: Layers) -> None:
    """Make these the layers of this context, and of this thread's jit key."""
    global _ever_used
    _ever_used = True
    _layers.set(layers)
    _sync()


def current_view() -> View:
    """The view that a lookup must use here and now."""
    layers = _NONE
    if _ever_used:
        if (earlier := _earlier.get()) is not None:
            return earlier
        layers = _in_force_now()
    view = layers.view
    if view is None or view.settings is not settings._current:  # pyright: ignore[reportPrivateUsage]
        try:
            now = current_settings()
        except AttnTuneError as error:
            rank_agreement.report_unusable(error)
            raise
        view = layers.view = View(now, layers.layers)
    return view


@contextlib.contextmanager
def viewing(view: View) -> Generator[None]:
    """Answer lookups from ``view`` within a ``with`` block: while XLA compiles, maybe long after the trace."""
    global _ever_used
    _ever_used = True
    token = _earlier.set(view)
    try:
        yield
    finally:
        _earlier.reset(token)


def in_open_blocks[**P, R](function: Callable[P, R]) -> Callable[P, R]:
    """``function``, made to run within the ``with`` blocks of packs and overrides that are open now.

    JAX traces the forward of a derivative, its backward and what ``vmap`` makes of a call after the block around the
    call has ended. Settings of the process are those of the moment it runs, so that ``reload`` is seen.
    """
    layers = current_view().layers

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        if current_view().layers == layers:
            return function(*args, **kwargs)
        with _with_layers(_intern(layers)):
            return function(*args, **kwargs)

    return run


def jit_keys() -> jit_key.JitKeys | None:
    """JAX's user contexts; None as long as jax is not imported.

    Importing this module after jax makes them. Made later, they cost a function that is being traced then one retrace.
    """
    if jit_key.keys is None and jit_key.make():
        _sync()
    return jit_key.keys


def _in_force_now() -> Layers:
    """The layers that a lookup must use.

    Within a trace they are those the jit key names, even if an asyncio task that held ``use_pack`` across an ``await``
    left another task's key on this thread: a cached trace must hold what its key says. Outside a trace the key is put
    right first.
    """
    wanted = _layers.get()
    keys = jit_keys()
    if keys is None:
        return wanted
    keyed: tuple[Layer, ...] = keys.layers.value
    if keyed is wanted.layers or keyed == wanted.layers:
        return wanted
    if not jit_key.tracing():
        _sync()
        return wanted
    _warn_once()
    return _intern(keyed)


@functools.lru_cache(maxsize=INTERN_LIMIT)
def _intern(layers: tuple[Layer, ...]) -> Layers:
    """One object for equal layers, so that a block entered again finds its answers again."""
    return Layers(layers) if layers else _NONE


def _sync() -> None:
    """Make this thread's jit key say what the context variable says."""
    keys = jit_keys()
    if keys is None:
        return
    layers = _layers.get().layers
    if keys.layers.value != layers:
        # Entered and never left: leaving would bring back what was there before, which in interleaved asyncio tasks
        # is another task's key. The context variable alone knows what comes next.
        keys.layers(layers).__enter__()


@functools.cache
def _warn_once() -> None:
    log.warning(
        "use_pack was entered in another asyncio task or thread than the one that traces; "
        "enter it where the jitted function is called, without an await in between"
    )


# An op imports jax before it imports this, so its functions are traced with the keys in place from the start.
jit_keys()
