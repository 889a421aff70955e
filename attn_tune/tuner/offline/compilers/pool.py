"""Compile configs for a target in several processes. One that hangs, dies or grows too big is killed."""

import logging
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
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
    """A number of worker processes, started as they are needed. Use it as a context manager."""

    def __init__(self, target: Target, *, processes: int, limits: Limits | None = None):
        """Start nothing yet. ``limits.compile`` is the limit for one config, in seconds."""
        self.target = target
        self.limits = limits or Limits()
        self._closed = threading.Event()
        self._cache = TemporaryFolder(_PREFIX, in_memory()) if target.topology else None
        cache = self._cache.path if self._cache else ""
        # A worker process ends with the thread that started it, and these live as long as the pool.
        count = max(1, processes)
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="compile")
        self._compilers = [_Compiler(target, self.limits, self._closed.is_set, cache) for _ in range(count)]
        self._idle: queue.LifoQueue[_Compiler] = queue.LifoQueue()
        for compiler in self._compilers:
            self._idle.put(compiler)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def compile(
        self,
        refs: Sequence[ConfigRef],
        *,
        skip: Skip = lambda ref: None,
        should_stop: Callable[[], bool] = lambda: False,
        whole: bool = False,
        limit_s: float | None = None,
    ) -> Iterator[Answer]:
        """Yield ``(index, result)`` of each config, as they end; they begin in the order given.

        ``skip`` is asked, from several threads, just before a config begins: an answer saves the compile. Once
        ``should_stop()`` is true nothing begins any more, and the iterator ends with those that run. ``whole`` compiles
        the program around the launches of a TPU too. ``limit_s`` is for one config, in place of the pool's limit.

        Raises:
          CompilerError: no worker starts, or one cannot serve any request.
          DiskFullError: a worker cannot write.
        """
        limit_s = self.limits.compile if limit_s is None else limit_s
        open_ = {self._threads.submit(self._answer, ref, skip, limit_s, whole): index for index, ref in enumerate(refs)}
        try:
            while open_:
                if should_stop():
                    open_ = {future: i for future, i in open_.items() if not future.cancel()}
                done, _ = wait(open_, timeout=_POLL_S, return_when=FIRST_COMPLETED)
                for future in done:
                    yield open_.pop(future), future.result()
        finally:
            for future in open_:
                future.cancel()

    def _answer(self, ref: ConfigRef, skip: Skip, limit_s: float, whole: bool) -> Compiled:
        if (known := skip(ref)) is not None:
            return known
        compiler = self._idle.get()
        try:
            return compiler.compile(ref, limit_s, whole=whole)
        finally:
            self._idle.put(compiler)

    def close(self) -> None:
        """Kill the workers, busy or not. May be called more than once."""
        self._closed.set()
        self._threads.shutdown(cancel_futures=True)
        for compiler in self._compilers:
            compiler.close()
        if self._cache:
            self._cache.close()


class _Compiler:
    """A worker process, replaced when it is lost, and the folder that it dumps into.

    Whole programs for TPUs have a process of their own that dumps nothing: their schedules are not read, and writing
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
        """Compile ``ref``. If a worker dies of it that was not fresh, a fresh one tries again.

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
        """End the process that dumps, or the other one, now."""
        worker = self._workers.pop(dumps, None)
        if worker is not None:
            worker.kill()

    def close(self) -> None:
        """End the processes and remove their folder."""
        for dumps in tuple(self._workers):
            self.kill(dumps)
        if self._folder:
            self._folder.close()
