"""Functions that are called after each lookup: for metrics, traces and logs of the job."""

import contextvars
from collections.abc import Callable

from attn_tune.runtime.locks import Lock
from attn_tune.runtime.lookup.answer import Answer
from attn_tune.schema.errors import UsageError, shown
from attn_tune.schema.logs import log

type Listener = Callable[[Answer], object]

_lock = Lock()
_notifying: contextvars.ContextVar[bool] = contextvars.ContextVar("attn_tune_notifying", default=False)
_failed: set[Listener] = set()

# Swapped whole, so that lookups read it without the lock. Empty is the common case and costs one test.
active: tuple[Listener, ...] = ()


def add_listener(listener: Listener) -> Callable[[], None]:
    """Calls ``listener`` with the ``Answer`` of every lookup from now on; returns what takes it away again.

    It is called in the thread that looks up, after the answer is found and outside every lock. An exception in it is
    logged once and never reaches the job; a lookup that it makes itself calls no listener.

    Raises:
      UsageError: it is no function.
    """
    global active
    if not callable(listener):
        raise UsageError(f"a listener must be a function of an Answer, got {shown(listener)}")
    with _lock:
        active = (*active, listener)

    def remove() -> None:
        global active
        with _lock:
            active = tuple(one for one in active if one is not listener)
            _failed.discard(listener)

    return remove


def notify(answer: Answer) -> None:
    """Call every listener."""
    if _notifying.get():
        return
    token = _notifying.set(True)
    try:
        for listener in active:
            try:
                listener(answer)
            except Exception:
                if listener not in _failed:
                    _failed.add(listener)
                    log.exception("a listener of lookups failed; it is not logged again")
    finally:
        _notifying.reset(token)
