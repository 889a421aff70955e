"""A lock that a forked child finds free, even if another thread of its parent held it."""

import os
import threading
from types import TracebackType


class Lock:
    """A mutex for ``with``. A forked child finds it unlocked: the thread that held it is not there to release it."""

    def __init__(self) -> None:
        self._renew()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._lock.release()
