"""The parent's end of one worker process: start it, talk to it, kill it, and say how it died."""

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any

import psutil

from attn_tune.schema.trial import Status
from attn_tune.tuner.protocol import Ready
from attn_tune.tuner.run.inbox import Inbox
from attn_tune.tuner.run.memory import MemoryWatch, gib, memory_limit, oom_kills
from attn_tune.tuner.work.faults import says_out_of_memory

_TAIL_BYTES = 16_384
_POLL_S = 0.1
_END_GRACE_S = 2.0
_STACK_GRACE_S = 0.3
_REASON_CHARS = 1500
# A mark, and no setting: only the process that set it reads its value.
_OWNER_VARIABLE = "_attn_tune_worker"
# RLIMIT_LOCKS, which Linux has not applied since 2.6 but still hands down, to a child with an empty environment too.
_OWNER_LIMIT = 10
# The process marks itself, before any code of the module can start another one, and is then as ``python -m MODULE``.
_MARKED = f"""
import contextlib, runpy, sys
_, mark, module, *rest = sys.argv
if sys.platform == "linux":
    import resource
    with contextlib.suppress(OSError, ValueError):  # its hard limit is lower
        resource.setrlimit({_OWNER_LIMIT}, (int(mark), resource.getrlimit({_OWNER_LIMIT})[1]))
sys.argv = [module, *rest]
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""
_MOST_ROUNDS = 5


class WorkerDied(Exception):
    """The worker process ended; the text says how, and ``status`` what that makes of the config in progress.

    ``by_outsider`` says that neither the worker nor this process ended it: most likely no config is to blame.
    """

    def __init__(self, text: str = "", *, status: Status = Status.CRASHED, by_outsider: bool = False):
        super().__init__(text)
        self.status = status
        self.by_outsider = by_outsider


class WorkerTooBig(WorkerDied):
    """The worker and its children took more host memory than they may, in bytes, and were killed."""

    def __init__(self, used: int, limit: int):
        text = f"host memory: {gib(used)} used, limit {gib(limit)}"
        super().__init__(text, status=Status.OUT_OF_RESOURCES)
        self.used = used
        self.limit = limit


class WorkerLate(Exception):
    """The worker did not answer in time."""

    status = Status.TIMED_OUT


def child_environment(added: Mapping[str, str]) -> dict[str, str]:
    """The variables of a process that the tuner starts: this one's, with ``added`` above them."""
    # Kernels and their entry points must be found as they are here.
    path = os.pathsep.join(p or os.getcwd() for p in sys.path)
    return {**os.environ, "PYTHONPATH": path, **added}


class WorkerProcess:
    """One worker in a session (process group) of its own, with its output in a ring buffer.

    It runs ``module``, and ends with the thread that started it. While an answer is awaited, its memory is watched.
    """

    def __init__(
        self,
        environment: Mapping[str, str] | None = None,
        module: str = "attn_tune.tuner.work.worker",
        memory_gib: float | None = None,
    ):
        ours, theirs = socket.socketpair()
        # The parent, a desktop or a dying predecessor may hold memory too.
        preallocate = os.environ.get("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        env = child_environment(
            {
                "PYTHONUNBUFFERED": "1",
                "XLA_PYTHON_CLIENT_PREALLOCATE": preallocate,
                **(environment or {}),
            }
        )
        # Children keep both marks even in a session of their own, and are found by either.
        self._mark = secrets.randbits(62)
        env[_OWNER_VARIABLE] = str(self._mark)
        limit = memory_limit(memory_gib)
        self._oom_kills = oom_kills()
        self._killed = False
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _MARKED, str(self._mark), module, str(theirs.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                env=env,
            )
        self._connection = Connection(ours.detach())
        self._inbox = Inbox(self._connection)
        self._sending = threading.Lock()
        self._memory = MemoryWatch(self.pid, limit)
        self._tail = b""
        self._reader = threading.Thread(target=self._read_output, daemon=True)
        self._reader.start()
        self.served = 0

    @property
    def pid(self) -> int:
        """The process id, which is also the group's."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """False once the process has ended."""
        return self._process.poll() is None

    def send(self, message: Any) -> None:
        """Send a message. May be called from any thread.

        Raises:
          WorkerDied: the worker has ended.
        """
        try:
            with self._sending:
                self._connection.send(message)
        except OSError:
            raise self._death() from None

    def receive(self, timeout_s: float, interrupt: Callable[[], bool]) -> Any:
        """The next message.

        Raises:
          WorkerDied: the process ended instead.
          WorkerTooBig: it took too much memory, and was killed.
          WorkerLate: nothing came within ``timeout_s``.
          InterruptedError: ``interrupt()`` turned true.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            # A child of its own may hold the socket open when it is gone.
            has_ended = self._process.poll() is not None
            try:
                if self._inbox.poll(0.0 if has_ended else _POLL_S):
                    return self._inbox.take()
            except (EOFError, OSError):
                raise self._death() from None
            except Exception as error:  # bytes that are no message: a kernel wrote to the worker's socket
                self.kill()
                raise WorkerDied(f"what it sent is no message ({type(error).__name__}: {error})") from None
            if has_ended:
                raise self._death()
            if interrupt():
                raise InterruptedError
            if (used := self._memory.excess()) is not None:
                self.kill()
                raise WorkerTooBig(used, self._memory.limit)
            if time.monotonic() > deadline:
                raise WorkerLate(self._describe_hang())

    def wait_until_ready(self, timeout_s: float, interrupt: Callable[[], bool]) -> None:
        """Wait for ``Ready``, the first message of every worker.

        Raises:
          WorkerDied: it ended, or is of no use.
          InterruptedError: ``interrupt()`` turned true.
        """
        try:
            message = self.receive(timeout_s, interrupt)
        except WorkerLate as late:
            raise WorkerDied(f"no end within {timeout_s:g} s; the process was killed{late}") from None
        if not isinstance(message, Ready):
            raise WorkerDied(f"it wrote {message!r} instead of being ready")

    def tail(self) -> str:
        """The last it wrote to its output."""
        return self._tail.decode(errors="replace").strip()

    def _death(self) -> WorkerDied:
        """Describe how the process ended, and its last output. Wait for it to end, and end it if it does not."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_GRACE_S)
        by_outsider = self._process.returncode == -signal.SIGKILL and not self._killed
        self.kill()
        self._reader.join(_END_GRACE_S)
        code = self._process.returncode
        status = Status.CRASHED
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
        if by_outsider and self._oom_killer_struck():
            status = Status.OUT_OF_RESOURCES
            how += " while the kernel's OOM killer was at work: host memory ran out"
        elif by_outsider:
            how += " from outside, perhaps by the kernel's OOM killer (its count has not changed)"
        elif code != 0 and says_out_of_memory(self.tail()):
            status = Status.OUT_OF_RESOURCES
        text = f"the worker process ended: {how}{self._output_end()}"
        return WorkerDied(text, status=status, by_outsider=by_outsider)

    def _oom_killer_struck(self) -> bool:
        count = oom_kills()
        return count is not None and self._oom_kills is not None and count > self._oom_kills

    def _describe_hang(self) -> str:
        """The stacks of the process, which it writes on SIGUSR1 even from within native code."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGUSR1)
        time.sleep(_STACK_GRACE_S)
        return self._output_end()

    def _output_end(self) -> str:
        tail = self.tail()
        # A stack dump is read from its top: the innermost call comes first.
        top = tail.rfind("Fatal Python error")
        if top < 0:
            top = tail.rfind("Current thread")
        end = tail[top:][:_REASON_CHARS] if top >= 0 else tail[-_REASON_CHARS:]
        return f"; it wrote: {end}" if end else ""

    def kill(self) -> None:
        """Kill the process and its children, now, those in sessions of their own too (Linux)."""
        self._killed = True
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
        for _ in range(_MOST_ROUNDS):  # One may fork while it is looked for.
            strays = _owned_by(self._mark)
            if not strays:
                return
            for pid in strays:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        """Let the process end by itself, and kill it (and what it started) if it does not."""
        self._connection.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_GRACE_S)
        self.kill()
        self._reader.join(_END_GRACE_S)

    def _read_output(self) -> None:
        stream = self._process.stdout
        assert stream is not None
        while chunk := os.read(stream.fileno(), 1 << 16):
            self._tail = (self._tail + chunk)[-_TAIL_BYTES:]
        stream.close()


def _owned_by(mark: int) -> list[int]:
    """The processes that have ``mark`` as a limit or in their environment, and can be looked at."""
    found = []
    for pid in psutil.pids():
        with contextlib.suppress(psutil.Error, OSError):  # It has ended, or is another user's.
            process = psutil.Process(pid)
            if (psutil.LINUX and process.rlimit(_OWNER_LIMIT)[0] == mark) or (
                process.environ().get(_OWNER_VARIABLE) == str(mark)
            ):
                found.append(pid)
    return found
