"""Errors that a signal handler of the job raised while other code ran."""

import inspect
import signal
from itertools import pairwise
from types import FrameType


def is_of_handler(error: BaseException) -> bool:
    """Whether a handler that ``signal.signal`` installed raised ``error``, in any code that it interrupted.

    Such an error, mostly ``SystemExit``, is the job's own: it is no failure of the code that the signal interrupted. A
    handler is known by its arguments, not by its name: it may have put another in its place before it raised.
    """
    step = error.__traceback__
    while step is not None:
        if any(_are_of_signal(*pair) for pair in pairwise(_arguments(step.tb_frame))):
            return True
        step = step.tb_next
    # The interrupted code may have made another error of it.
    return error.__cause__ is not None and is_of_handler(error.__cause__)


def _are_of_signal(number: object, frame: object) -> bool:
    return isinstance(frame, FrameType) and isinstance(number, int) and number in signal.valid_signals()


def _arguments(frame: FrameType) -> list[object]:
    """The positional arguments of the function that runs in ``frame``, as they are now."""
    names, rest, _, values = inspect.getargvalues(frame)
    more = values.get(rest) if rest else ()
    return [*map(values.get, names), *(more if isinstance(more, tuple) else ())]
