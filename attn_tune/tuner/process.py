"""The parent's end of one worker process: start it, talk to it, kill it, and say how it died."""

import collections
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any

_TAIL_BYTES = 16_384
_POLL_S = 0.1
_END_GRACE_S = 2.0
_STACK_GRACE_S = 0.3
_REASON_CHARS = 1500


class WorkerDied(Exception):
    """The worker process ended; the text says how."""


class WorkerLate(Exception):
    """The worker did not answer in time."""


class WorkerProcess:
    """One worker in a session (process group) of its own, with its output in a ring buffer.

    It runs ``module``, and ends with the thread that started it.
    """

    def __init__(
        self,
        environment: Mapping[str, str] | None = None,
        module: str = "attn_tune.tuner.worker",
    ):
        ours, theirs = socket.socketpair()
        env = dict(os.environ)
        # Kernels and their entry points must be found as they are here.
        env["PYTHONPATH"] = os.pathsep.join(p or os.getcwd() for p in sys.path)
        env["PYTHONUNBUFFERED"] = "1"
        # The parent, a desktop or a dying predecessor may hold memory too.
        env.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        env.update(environment or {})
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, str(theirs.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                env=env,
            )
        self._connection = Connection(ours.detach())
        self._sending = threading.Lock()
        self._tail: collections.deque[int] = collections.deque(maxlen=_TAIL_BYTES)
        self._reader = threading.Thread(target=self._read_output, daemon=True)
        self._reader.start()
        self.served = 0

    @property
    def pid(self) -> int:
        """The process id, which is also the group's."""
        return self._process.pid

    def send(self, message: Any) -> None:
        """Sends a message. May be called from any thread.

        Raises:
          WorkerDied: nobody is there to read it.
        """
        try:
            with self._sending:
                self._connection.send(message)
        except OSError:
            raise WorkerDied(self.describe_end()) from None

    def receive(self, timeout_s: float, interrupt: Callable[[], bool]) -> Any:
        """The next message.

        Raises:
          WorkerDied: the process ended instead.
          WorkerLate: nothing came within ``timeout_s``.
          InterruptedError: ``interrupt()`` turned true.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                if self._connection.poll(_POLL_S):
                    return self._connection.recv()
            except (EOFError, OSError):
                raise WorkerDied(self.describe_end()) from None
            if interrupt():
                raise InterruptedError
            if time.monotonic() > deadline:
                raise WorkerLate(self._describe_hang())

    def tail(self) -> str:
        """The last it wrote to its output."""
        return bytes(self._tail).decode(errors="replace").strip()

    def describe_end(self) -> str:
        """How the process ended, and the last it said. Waits for it to end, and ends it if it does not."""
        try:
            code = self._process.wait(_END_GRACE_S)
        except subprocess.TimeoutExpired:
            self.kill()
            code = self._process.returncode
        self._reader.join(_END_GRACE_S)
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
        return f"the worker process ended: {how}{self._said()}"

    def _describe_hang(self) -> str:
        """Where the process stands: its stacks, which it writes on SIGUSR1 even from within native code."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGUSR1)
        time.sleep(_STACK_GRACE_S)
        return self._said()

    def _said(self) -> str:
        tail = self.tail()
        # A stack dump is read from its top: the innermost call comes first.
        top = tail.rfind("Fatal Python error")
        if top < 0:
            top = tail.rfind("Current thread")
        said = tail[top:][:_REASON_CHARS] if top >= 0 else tail[-_REASON_CHARS:]
        return f"; it wrote: {said}" if said else ""

    def kill(self) -> None:
        """Kills the process and its children, now."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()

    def close(self) -> None:
        """Lets the process end by itself, and kills it (and what it started) if it does not."""
        self._connection.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_GRACE_S)
        self.kill()
        self._reader.join(_END_GRACE_S)

    def _read_output(self) -> None:
        stream = self._process.stdout
        assert stream is not None
        while chunk := os.read(stream.fileno(), 4096):
            self._tail.extend(chunk)
        stream.close()
