"""Errors that a signal handler of the job raised while other code ran."""

import signal
from functools import partial
from types import CodeType
from typing import Any


def is_of_handler(error: BaseException) -> bool:
    """Whether a handler that ``signal.signal`` installed raised ``error``, in any code that it interrupted.

    Such an error, mostly ``SystemExit``, is the job's own: it is no failure of the code that the signal interrupted.
    """
    handlers = {_code(signal.getsignal(number)) for number in signal.valid_signals()} - {None}
    step = error.__traceback__
    while step is not None:
        if step.tb_frame.f_code in handlers:
            return True
        step = step.tb_next
    return False


def _code(handler: Any) -> CodeType | None:
    """The code of a function, a method, a ``partial`` or an object that can be called; None of another handler."""
    while isinstance(handler, partial):
        handler = handler.func
    codes = (getattr(found, "__code__", None) for found in (handler, getattr(handler, "__call__", None)))  # noqa: B004
    return next((code for code in codes if isinstance(code, CodeType)), None)
