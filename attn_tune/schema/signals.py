"""Errors that a signal handler of the job raised while other code ran."""

import inspect
import signal
from functools import partial
from itertools import pairwise
from types import CodeType, FrameType
from typing import Any


def is_of_handler(error: BaseException) -> bool:
    """Whether a handler that ``signal.signal`` installed raised ``error``, in any code that it interrupted.

    Such an error, mostly ``SystemExit``, is the job's own: it is no failure of the code that the signal interrupted. A
    handler is known by its code, or, as it may have put another in its place before it raised, by its arguments.
    """
    codes = {_code(signal.getsignal(number)) for number in signal.valid_signals()} - {None}
    cause: BaseException | None = error
    seen: set[int] = set()
    # The interrupted code may have made another error of it. Causes may go round.
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        step = cause.__traceback__
        while step is not None:
            frame = step.tb_frame
            if frame.f_code in codes or any(_are_of_signal(*pair) for pair in pairwise(_arguments(frame))):
                return True
            step = step.tb_next
        cause = cause.__cause__
    return False


def _code(handler: Any) -> CodeType | None:
    """The code of a function, a method, a ``partial`` or an object that can be called; None of another handler."""
    while isinstance(handler, partial):
        handler = handler.func
    codes = (getattr(found, "__code__", None) for found in (handler, getattr(handler, "__call__", None)))  # noqa: B004
    return next((code for code in codes if isinstance(code, CodeType)), None)


def _are_of_signal(number: object, frame: object) -> bool:
    return type(frame) is FrameType and type(number) is int and number in signal.valid_signals()


def _arguments(frame: FrameType) -> list[object]:
    """The positional arguments of the function that runs in ``frame``, as they are now."""
    names, rest, _, values = inspect.getargvalues(frame)
    more = values.get(rest) if rest else ()
    return [*map(values.get, names), *(more if isinstance(more, tuple) else ())]
