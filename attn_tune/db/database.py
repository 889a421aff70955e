"""The lab database: records trials, answers questions about them, and decides from them."""

import contextlib
import itertools
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from attn_tune.db import frames
from attn_tune.db.decide import decision_table
from attn_tune.db.decide.races import Race, race_of
from attn_tune.db.decide.recorded import RecordedTrial
from attn_tune.db.release import predictions
from attn_tune.db.store import health, past_searches, run_progress, runs, trials
from attn_tune.db.store.connection import check_in_place, connect, immediate, storage_errors
from attn_tune.db.store.query import read_query
from attn_tune.db.store.references import References
from attn_tune.db.store.writer import WriterLock
from attn_tune.schema import (
    Decision,
    Device,
    Environment,
    Signature,
    Status,
    StorageError,
    Trial,
    UsageError,
)

if TYPE_CHECKING:
    import pandas as pd


class Database:
    """One SQLite file. Open it with ``Database.open``; use it as a context manager, in one process and one thread.

    Every method may raise ``StorageError`` (locked, full, unwritable) and ``IntegrityError`` (damaged).

    Attributes:
      path: the file.
      read_only: whether writing is refused.
    """

    def __init__(self, connection: sqlite3.Connection, path: Path, *, read_only: bool):
        self.path = path
        self.read_only = read_only
        self._connection = connection
        self._references = References(connection)
        self._lock = WriterLock(path)
        self._open_runs: set[int] = set()
        self._pid = os.getpid()
        self._file = path.absolute()  # the process may change its working directory
        with storage_errors(path):
            self._identity = self._file.stat()

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, create: bool = False, read_only: bool = False) -> "Database":
        """Opens the database at ``path``.

        Raises:
          NoDataError: there is no such file, and ``create`` is off.
          IntegrityError: not a lab database, damaged, or of another schema. Nothing was written.
          StorageError: the file cannot be opened or is locked.
        """
        path = Path(path)
        return cls(connect(path, create=create, read_only=read_only), path, read_only=read_only)

    def close(self) -> None:
        """Closes the file. Runs that were not ended are marked as interrupted."""
        if self._is_inherited:
            return
        try:
            for run_id in sorted(self._open_runs):
                self.end_run(run_id, "interrupted")
        finally:
            self._lock.release()
            self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    # --- Writing ---

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """One write transaction: everything in it, or nothing.

        Raises:
          StorageError: opened read-only, inherited by a forked process, or the file was deleted, moved or replaced
            since it was opened. Nothing was written.
        """
        self._check_writable()
        with storage_errors(self.path), immediate(self._connection):
            yield self._connection
            # Last, so that no write to a file that has lost its name is acknowledged.
            check_in_place(self.path, self._file, self._identity)

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Keeps sweeps from beginning for a ``with`` block.

        Raises:
          StorageError: another process writes; the message names it.
          UsageError: a run is open here.
        """
        if self._open_runs:
            raise UsageError(f"a run is open on {self.path}; end it first")
        self._check_writable()
        with storage_errors(self.path):
            self._lock.acquire()
        try:
            yield
        finally:
            self._lock.release()

    @contextlib.contextmanager
    def attached(self, uri: str, name: str) -> Iterator[None]:
        """Another database beside this one for a ``with`` block, called ``name`` in SQL."""
        with storage_errors(self.path):
            self._connection.execute(f"ATTACH ? AS {name}", (uri,))
        try:
            yield
        finally:
            self._connection.execute(f"DETACH {name}")

    def vacuum(self) -> None:
        """Rewrites the file without its free pages; needs room for a copy meanwhile."""
        with storage_errors(self.path):
            self._connection.execute("VACUUM")
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def begin_run(
        self, *, device: Device, environment: Environment, argv: Sequence[str], started_us: int | None = None
    ) -> int:
        """Starts a run and takes the writer lock. Returns the run's id.

        ``started_us`` is the Unix time in microseconds at which its work began, now by default.

        Raises:
          StorageError: another process is writing to this database; the message names it.
        """
        self._check_writable()
        with storage_errors(self.path):
            self._lock.acquire()
        with self.transaction():
            if not self._open_runs:
                runs.abandon_runs(self._connection)
            run_id = runs.add_run(self._connection, self._references, device, environment, argv, started_us)
        self._open_runs.add(run_id)
        return run_id

    def end_run(self, run_id: int, status: str) -> None:
        """Ends a run as ``"finished"``, ``"interrupted"`` or ``"failed"``; the last one frees the writer lock."""
        if status not in runs.ENDINGS:
            raise UsageError(f"a run ends as one of {', '.join(runs.ENDINGS)}, not {status!r}")
        self._check_run(run_id)
        with self.transaction():
            runs.end_run(self._connection, run_id, status)
        self._open_runs.discard(run_id)
        if not self._open_runs:
            self._lock.release()

    def heartbeat(self, run_id: int, progress: run_progress.RunProgress | None = None) -> None:
        """Notes that the run lives, and its ``progress``; worth calling every second or so.

        With ``progress`` another thread of the process that began the run may call it, on a connection of its own.

        Raises:
          StorageError: the run is not open here, or has ended.
        """
        if progress is None:
            self._check_run(run_id)
        with self.transaction():
            if progress is None:
                trials.beat(self._connection, run_id)
            elif not run_progress.store_progress(self._connection, run_id, progress):
                raise StorageError(f"run {run_id} is not running; begin a new one")

    def record(self, run_id: int, trial: Trial) -> int:
        """Stores one trial in one transaction, and returns its id. Once it returns, a kill cannot lose the trial.

        Raises:
          StorageError: the run is not open here.
          UsageError: the trial holds what cannot be read back, such as a signature field of another type.
        """
        self._check_run(run_id)
        with self.transaction():
            return trials.add_trials(self._connection, self._references, run_id, [trial])[0]

    def record_many(self, run_id: int, many: Iterable[Trial]) -> int:
        """Stores many trials in one transaction, faster than ``record``: all of them or none. Returns how many.

        Raises:
          StorageError, UsageError: as ``record``.
        """
        self._check_run(run_id)
        with self.transaction():
            return len(trials.add_trials(self._connection, self._references, run_id, many))

    # --- Reading ---

    def measured(
        self,
        kernel_id: str,
        direction: str,
        signature: Signature,
        device: Device,
        environment: Environment,
        *,
        allow_nondeterministic: bool = False,
    ) -> dict[tuple[str, str], Status]:
        """``(part, config digest) -> status`` of the configs that an equal device and environment has tried.

        The status is that of the newest trial. Unknown software never equals itself: without a source hash the answer
        is empty. Left out are configs of which a library could not be imported and, with ``allow_nondeterministic``,
        those that were refused because their bits differ.
        """
        if not environment.source_hash:
            return {}
        with storage_errors(self.path):
            return trials.read_measured(
                self._connection,
                kernel=kernel_id,
                direction=direction,
                signature=signature.text,
                device=device.digest,
                environment=environment.digest,
                allow_nondeterministic=allow_nondeterministic,
            )

    def trials(self, **filters: Any) -> Iterator[Trial]:
        """The trials that fit, oldest first, exactly as they were recorded.

        Filters are ``op``, ``kernel`` (a name or ``"op/name"``), ``direction``, ``signature`` (or its text), ``device``
        (or its digest or variant), ``run``, ``status``, ``config_digest`` and ``environment`` (its digest).

        Raises:
          UsageError: an unknown filter.
        """
        for one in self.recorded(**filters):
            yield one.trial

    def recorded(self, **filters: Any) -> Iterator[RecordedTrial]:
        """The trials that fit, as ``trials``, each with the run that recorded it."""
        with storage_errors(self.path):
            for run, trial in trials.read_trials(self._connection, self._references, filters):
                yield RecordedTrial(run, trial)

    def run_names(self) -> dict[int, str]:
        """The names of the runs by id; a run has the same name in every database that it is merged into."""
        with storage_errors(self.path):
            return dict(self._connection.execute("SELECT id, uid FROM run").fetchall())

    def past_searches(
        self,
        *,
        kernel: str | None = None,
        direction: str | None = None,
        part: str | None = None,
        family: str | None = None,
    ) -> list[past_searches.PastSearch]:
        """Times that searches measured, by case and part, in every environment: the start of the next search.

        ``kernel`` is ``"op/name"``, ``family`` that of the device.
        """
        filters = {"kernel": kernel, "direction": direction, "part": part, "family": family}
        with storage_errors(self.path):
            return past_searches.read_past_searches(self._connection, self._references, filters)

    def status(self) -> runs.RunStatus:
        """The running run, else the last one, with its progress."""
        with storage_errors(self.path):
            return runs.read_status(self._connection, self._references, self.path)

    def pace(self, device: Device) -> runs.Pace | None:
        """The pace of the last runs on an equal device; None where there is none."""
        with storage_errors(self.path):
            return runs.read_pace(self._connection, device)

    def frame(self, name: str, **filters: Any) -> "pd.DataFrame":
        """A table for reports, narrowed like ``trials`` and ``decisions``.

        ``"trials"``: one row a trial. ``"decisions"``: one row a decision. ``"winners"`` and ``"failures"``: the views
        of that name. These four have the signature's fields in columns ``sig_*`` and the knobs in columns ``cfg_*``.
        ``"samples"``: the view, one row a sample. ``"finals"``: one row a trial of a final, with the state of the
        device. ``"coverage"``: one row a (signature, direction, device, kernel) that was tried. ``"runs"``: one row a
        run. ``"imported"``: one row a row of an imported pack. Times are timestamps in UTC. Numbers that may be unknown
        have pandas' nullable types.

        Raises:
          UsageError: an unknown frame or filter.
        """
        with storage_errors(self.path):
            return frames.read_frame(self._connection, self._references, name, filters)

    def query(self, sql: str, parameters: Mapping[str, Any] = {}, *, limit: int | None = None) -> "pd.DataFrame":
        """The rows of one SELECT over the tables and views, at most ``limit``; ``parameters`` by name (``:name``).

        It can read and nothing else, in a database that is open to write too. Times of day stay ISO texts.

        Raises:
          UsageError: no such query can be run; the message says why.
        """
        with storage_errors(self.path):
            return read_query(self._connection, sql, parameters, limit)

    def describe(self) -> health.Description:
        """Facts about the file: size, versions, rows."""
        with storage_errors(self.path):
            return health.describe(self._connection, self.path)

    def integrity_check(self) -> tuple[str, ...]:
        """Everything that is wrong with the file, as sentences; empty when it is sound. Reads all of it."""
        with storage_errors(self.path):
            return health.find_problems(self._connection)

    # --- Decisions ---

    def rebuild_decisions(self, *, signatures: Iterable[Signature | str] | None = None) -> int:
        """Makes the decisions from the trials again, for all signatures or some. Returns how many problems have one.

        The old decisions stay until the new ones replace them in one transaction.
        """
        decided = list(self._decided(signatures))
        with self.transaction():
            for problem, decisions in decided:
                decision_table.replace_decisions(self._connection, self._references, problem, decisions)
        return sum(1 for _, decisions in decided if decisions)

    def decide(self, *, signatures: Iterable[Signature | str] | None = None) -> Iterator[Decision]:
        """Decides everything, or some signatures, from the trials as they are now, and stores nothing."""
        for _, decisions in self._decided(signatures):
            yield from decisions

    def decide_predicted(self) -> Iterator[Decision]:
        """Decisions by predictions, for problems on devices where nothing was measured; ``median_ns`` is None."""
        fates = (self.trials(status=status) for status in predictions.FATES)
        found = predictions.decide_predicted(itertools.chain.from_iterable(fates))
        yield from predictions.unmeasured(found, self.decide())

    def decisions(self, **filters: Any) -> list[Decision]:
        """The decisions that fit, by signature, direction, device and rank, as of the last ``rebuild_decisions``.

        Filters are ``op``, ``kernel``, ``direction``, ``signature`` and ``device``, as for ``trials``, and ``rank``, 0
        for the winners.

        Raises:
          UsageError: an unknown filter.
        """
        with storage_errors(self.path):
            return decision_table.read_decisions(self._connection, self._references, filters)

    def races(self, decisions: Iterable[Decision]) -> list[Race]:
        """The samples behind each of ``decisions``, and the interval of its gain. One without a default has none."""
        found = []
        with storage_errors(self.path):
            for d in decisions:
                problem = {"signature": d.signature, "direction": d.direction, "device": d.device, "kernel": d.kernel}
                rows = trials.read_trials(self._connection, self._references, problem)
                found.append(race_of(d, [RecordedTrial(run, trial) for run, trial in rows]))
        return [race for race in found if race is not None]

    def decision(self, signature: Signature, direction: str, device: Device, *, rank: int = 0) -> Decision | None:
        """One decision as of the last ``rebuild_decisions``, by default the winner; None without one."""
        found = self.decisions(signature=signature, direction=direction, device=device, rank=rank)
        return found[0] if found else None

    def _decided(
        self, signatures: Iterable[Signature | str] | None
    ) -> Iterator[tuple[decision_table.Problem, tuple[Decision, ...]]]:
        texts = None if signatures is None else {str(s) for s in signatures}
        with storage_errors(self.path):
            for problem in decision_table.open_problems(self._connection, texts):
                yield (
                    problem,
                    decision_table.decide_problem(self._connection, self._references, problem),
                )

    # --- Checks before a write ---

    def _check_run(self, run_id: int) -> None:
        if run_id not in self._open_runs:
            raise StorageError(f"run {run_id} is not open in this process; begin a new one")

    def _check_writable(self) -> None:
        if self.read_only:
            raise StorageError(f"{self.path} was opened read-only")
        if self._is_inherited:
            raise StorageError(f"{self.path} was opened by process {self._pid}; open it again here")

    @property
    def _is_inherited(self) -> bool:
        """Whether this is a forked child, which must leave its parent's connection alone."""
        return self._pid != os.getpid()
