"""The parent's end of the helper processes that compile ahead: started together, killed one by one or together."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any

from attn_tune.tuner.run.inbox import Inbox
from attn_tune.tuner.run.process import child_environment

_POLL_S = 0.1
_START_S = 120.0


class HelperLost(Exception):
    """The helper process ended, or did not answer in time."""


class Helper:
    """One helper process: a socket, and its process id once it was received."""

    def __init__(self, connection: Connection):
        self._connection = connection
        self._inbox = Inbox(connection)
        self._pid: int | None = None

    def ask(self, message: Any, timeout_s: float, interrupt: Callable[[], bool]) -> Any:
        """The answer to ``message``.

        Raises:
          HelperLost: the process ended, or nothing came within ``timeout_s``; it is of no more use.
          InterruptedError: ``interrupt()`` turned true.
        """
        if self._pid is None:
            self._pid = self._receive(_START_S, interrupt)
        try:
            self._connection.send(message)
        except OSError:
            raise HelperLost("the helper process ended") from None
        return self._receive(timeout_s, interrupt)

    def kill(self) -> None:
        """End the process at once."""
        self._connection.close()
        if self._pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)

    def _receive(self, timeout_s: float, interrupt: Callable[[], bool]) -> Any:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            try:
                if self._inbox.poll(_POLL_S):
                    return self._inbox.take()
            except (EOFError, OSError):
                raise HelperLost("the helper process ended") from None
            except Exception as error:
                raise HelperLost(f"what it sent is no message ({type(error).__name__}: {error})") from None
            if interrupt():
                raise InterruptedError
        raise HelperLost(f"no end within {timeout_s:g} s")


class HelperGroup:
    """``count`` helpers, forked from one process in a session of its own."""

    def __init__(self, count: int, environment: Mapping[str, str]):
        """Start them.

        Raises:
          OSError: no process can be started.
        """
        pairs = [socket.socketpair() for _ in range(count)]
        fds = [theirs.fileno() for _, theirs in pairs]
        try:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "attn_tune.tuner.work.lowering_helper",
                    str(os.getpid()),
                    *map(str, fds),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=fds,
                start_new_session=True,
                env=child_environment(environment),
            )
        finally:
            for _, theirs in pairs:
                theirs.close()
        self.helpers = [Helper(Connection(ours.detach())) for ours, _ in pairs]

    def close(self) -> None:
        """End them all at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
