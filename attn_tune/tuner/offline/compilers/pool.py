"""Compiles configs for a target in several processes. One that hangs, dies or grows too big is killed."""

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Self

from attn_tune.schema.errors import AttnTuneError
from attn_tune.schema.trial import Status
from attn_tune.tuner.offline.compilers.protocol import Compiled, CompileFor
from attn_tune.tuner.offline.compilers.tpu import compiler_environment
from attn_tune.tuner.offline.target import Target
from attn_tune.tuner.protocol import ConfigRef, Limits, Refusal
from attn_tune.tuner.run.process import WorkerDied, WorkerLate, WorkerProcess
from attn_tune.tuner.run.temporary_folder import TemporaryFolder, in_memory
from attn_tune.tuner.work.faults import DiskFullError

logger = logging.getLogger(__name__)

_MODULE = "attn_tune.tuner.offline.compilers.worker"
_PREFIX = "attn-tune-tpu-"
_MOST_ATTEMPTS = 3
_POLL_S = 0.2

type Skip = Callable[[ConfigRef], Compiled | None]
type Answer = tuple[int, Compiled]


class CompilerError(AttnTuneError):
    """Raised when no process that compiles for the target starts, or none can compile anything."""

    exit_code = 3


class CompilePool:
    """A number of worker processes, each owned by a thread here. Use it as a context manager."""

    def __init__(self, target: Target, *, processes: int, limits: Limits | None = None):
        """Starts nothing yet. ``limits.compile`` is the limit for one config, in seconds."""
        self.target = target
        self.limits = limits or Limits()
        self._processes = max(1, processes)
        self._changed = threading.Condition()
        self._jobs: deque[tuple[int, ConfigRef]] = deque()
        self._skip: Skip = lambda ref: None
        self._whole, self._limit_s = False, self.limits.compile
        self._answers: queue.SimpleQueue[Answer | BaseException] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._closed = threading.Event()
        self._cache = TemporaryFolder(_PREFIX, in_memory()) if target.topology else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def compile(
        self,
        refs: Sequence[ConfigRef],
        *,
        skip: Skip = lambda ref: None,
        leave: Callable[[], bool] = lambda: False,
        whole: bool = False,
        limit_s: float | None = None,
    ) -> Iterator[Answer]:
        """Yields ``(index, result)`` of each config, as they end; they begin in the order given.

        ``skip`` is asked, from several threads, just before a config begins: an answer saves the compile. Once
        ``leave()`` is true nothing begins any more, and the iterator ends with those at hand. ``whole`` compiles the
        program around the launches of a TPU too. ``limit_s`` is what one config may take, instead of the pool's limit.

        Raises:
          CompilerError: no worker starts, or one cannot serve any request.
          DiskFullError: a worker cannot write.
        """
        self._start()
        with self._changed:
            self._skip, self._whole = skip, whole
            self._limit_s = self.limits.compile if limit_s is None else limit_s
            self._jobs.extend(enumerate(refs))
            self._changed.notify_all()
        open_count = len(refs)
        while open_count:
            if leave():
                with self._changed:
                    open_count -= len(self._jobs)
                    self._jobs.clear()
            try:
                answer = self._answers.get(timeout=_POLL_S)
            except queue.Empty:
                continue
            if isinstance(answer, BaseException):
                raise answer
            open_count -= 1
            yield answer

    def close(self) -> None:
        """Kills the workers, whatever they do. May be called more than once."""
        self._closed.set()
        with self._changed:
            self._jobs.clear()
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        if self._cache:
            self._cache.close()

    def _start(self) -> None:
        while len(self._threads) < self._processes:
            name = f"compile-{len(self._threads)}"
            thread = threading.Thread(target=self._serve, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self) -> None:
        cache = self._cache.path if self._cache else ""
        compiler = _Compiler(self.target, self.limits, self._closed.is_set, cache)
        try:
            while (job := self._next()) is not None:
                index, ref = job
                answer = self._skip(ref) or compiler.compile(ref, self._limit_s, whole=self._whole)
                self._answers.put((index, answer))
        except InterruptedError:
            return  # Closed meanwhile.
        except BaseException as error:  # The caller's thread raises it.
            self._answers.put(error)
        finally:
            compiler.close()

    def _next(self) -> tuple[int, ConfigRef] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._closed.is_set() or bool(self._jobs))
            return None if self._closed.is_set() else self._jobs.popleft()


class _Compiler:
    """A worker process, replaced when it is lost, and the folder that it dumps into.

    Whole programs for TPUs have a process of their own that dumps nothing: nobody reads their schedules, and writing
    down every copy and transpose takes ten times as long as compiling them.
    """

    def __init__(self, target: Target, limits: Limits, interrupt: Callable[[], bool], cache: str):
        self._target = target
        self._limits = limits
        self._interrupt = interrupt
        self._cache = cache
        self._folder = TemporaryFolder(_PREFIX, in_memory()) if target.topology else None
        # By whether they dump.
        self._workers: dict[bool, WorkerProcess] = {}

    def compile(self, ref: ConfigRef, limit_s: float, *, whole: bool = False) -> Compiled:
        """Compiles ``ref``. If a worker dies of it that was not fresh, a fresh one tries again.

        Raises:
          InterruptedError: the pool was closed meanwhile.
          CompilerError, DiskFullError: no config is to blame.
        """
        reason, status = "", Status.CRASHED
        dumps = bool(self._folder) and not whole
        request = CompileFor(
            ref=ref,
            target=self._target.name,
            whole=whole,
            dump_folder=self._folder.path if self._folder else "",
            cache_folder=self._cache,
        )
        for _ in range(_MOST_ATTEMPTS):
            worker = self._ready(dumps)
            fresh = worker.served == 0
            try:
                worker.send(request)
                worker.served += 1
                answer = worker.receive(limit_s, self._interrupt)
            except WorkerLate as late:
                self.kill(dumps)
                text = f"compile: no end within {limit_s:g} s; the process was killed{late}"
                return Compiled(status=Status.TIMED_OUT, reason=text)
            except WorkerDied as death:
                self.kill(dumps)
                reason, status = f"compile: {death}", death.status
                if fresh and not death.by_outsider:
                    break
                logger.info("%s: trying again in a fresh process: %s", ref.kernel, reason)
                continue
            if isinstance(answer, Refusal):
                raise (DiskFullError if answer.disk_full else CompilerError)(answer.reason)
            return answer
        return Compiled(status=status, reason=reason)

    def _ready(self, dumps: bool) -> WorkerProcess:
        if dumps in self._workers:
            return self._workers[dumps]
        added = {"JAX_PLATFORMS": "cpu"}
        if self._folder:
            added = compiler_environment(self._folder.path, dumps=dumps)
        worker = self._workers[dumps] = WorkerProcess(added, module=_MODULE)
        try:
            worker.wait_until_ready(self._limits.start, self._interrupt)
        except WorkerDied as death:
            self.kill(dumps)
            raise CompilerError(f"no process that compiles starts: {death}") from None
        return worker

    def kill(self, dumps: bool) -> None:
        """Ends the process that dumps, or the other one, now."""
        worker = self._workers.pop(dumps, None)
        if worker is not None:
            worker.kill()

    def close(self) -> None:
        """Ends the processes and removes their folder."""
        for dumps in tuple(self._workers):
            self.kill(dumps)
        if self._folder:
            self._folder.close()
