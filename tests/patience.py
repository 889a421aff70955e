"""Waits for events that must happen, with a limit that suits a machine whose cores are busy."""

import time
from collections.abc import Callable

# An upper limit costs a test that passes nothing: only what never comes takes this long, and fails.
PATIENCE_S = 600.0


def until(condition: Callable[[], object]) -> None:
    """Returns once ``condition()`` is true.

    Raises:
      AssertionError: it is still false after ``PATIENCE_S``.
    """
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.02)
