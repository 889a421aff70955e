"""The lab database: records trials, answers questions about them, and decides from them."""

import contextlib
import itertools
import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from attn_tune.db import frames
from attn_tune.db.decide import decision_table
from attn_tune.db.release import predictions
from attn_tune.db.store import health, past_searches, runs, trials
from attn_tune.db.store.connection import connect, storage_errors
from attn_tune.db.store.lab_file import LabFile
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


class Database(LabFile):
    """One SQLite file. Open it with ``Database.open``; use it as a context manager, in one process and one thread.

    Every method may raise ``StorageError`` (locked, full, unwritable) and ``IntegrityError`` (damaged).
    """

    def __init__(self, connection: sqlite3.Connection, path: Path, *, read_only: bool):
        super().__init__(connection, path, read_only=read_only)
        self._open_runs: set[int] = set()

    @classmethod
    def open(
        cls, path: str | os.PathLike[str], *, create: bool = False, read_only: bool = False
    ) -> "Database":
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
            self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    # --- Writing ---

    def begin_run(self, *, device: Device, environment: Environment, argv: Sequence[str]) -> int:
        """Starts a run and takes the writer lock. Returns the run's id.

        Raises:
          StorageError: another process is writing to this database; the message names it.
        """
        with self.transaction():
            if self._lock.acquire():
                runs.abandon_runs(self._connection)
            run_id = runs.add_run(self._connection, self._references, device, environment, argv)
        self._open_runs.add(run_id)
        return run_id

    def end_run(self, run_id: int, status: str) -> None:
        """Ends a run as ``"finished"``, ``"interrupted"`` or ``"failed"``; the last one frees the writer lock."""
        if status not in runs.ENDINGS:
            raise UsageError(f"a run ends as one of {', '.join(runs.ENDINGS)}, not {status!r}")
        self._check_run(run_id)
        with self.transaction():
            runs.end_run(self._connection, run_id, status)
            if self._open_runs == {run_id}:
                self._lock.release()
        self._open_runs.discard(run_id)

    def heartbeat(self, run_id: int) -> None:
        """Notes that the run lives; worth calling every minute or so while nothing is recorded."""
        with self._recording(run_id):
            trials.beat(self._connection, run_id)

    def record(self, run_id: int, trial: Trial) -> int:
        """Stores one trial in one transaction, and returns its id. Once it returns, a kill cannot lose the trial.

        Raises:
          StorageError: the run is not open here, or the writer lock went to another process.
        """
        with self._recording(run_id):
            return trials.add_trials(self._connection, self._references, run_id, [trial])[0]

    def record_many(self, run_id: int, many: Iterable[Trial]) -> int:
        """Stores many trials in one transaction, faster than ``record``: all of them or none. Returns how many.

        Raises:
          StorageError: the run is not open here, or the writer lock went to another process.
        """
        with self._recording(run_id):
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

        The status is that of the newest trial. An environment without a source hash equals nothing. With
        ``allow_nondeterministic``, configs that were refused only because their bits differ are left out.
        """
        with storage_errors(self.path):
            return trials.read_measured(
                self._connection,
                kernel=kernel_id,
                direction=direction,
                signature=signature,
                device=device,
                environment=environment,
                allow_nondeterministic=allow_nondeterministic,
            )

    def trials(
        self,
        *,
        op: str | None = None,
        kernel: str | None = None,
        direction: str | None = None,
        signature: Signature | str | None = None,
        device: Device | str | None = None,
        run: int | None = None,
        status: Status | str | None = None,
    ) -> Iterator[Trial]:
        """The trials that fit, oldest first, exactly as they were recorded.

        ``kernel`` is a name or ``"op/name"``; ``device`` a device, its digest or its variant.
        """
        filters = trials.parameters(
            op=op,
            kernel=kernel,
            direction=direction,
            signature=signature,
            device=device,
            run=run,
            status=status,
        )
        with storage_errors(self.path):
            for _, _, trial in trials.read_trials(self._connection, self._references, filters):
                yield trial

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
        given = {name: value for name, value in filters.items() if value is not None}
        with storage_errors(self.path):
            return past_searches.read_past_searches(self._connection, self._references, given)

    def status(self) -> runs.RunStatus:
        """The run that goes on, else the last one, with its progress."""
        with storage_errors(self.path):
            return runs.read_status(self._connection, self._references)

    def seconds_per_config(self, device: Device) -> float | None:
        """Seconds that the last run on an equal device took for each config; None without a run of some length."""
        with storage_errors(self.path):
            return runs.read_pace(self._connection, device)

    def frame(self, name: str, **filters: Any) -> "pd.DataFrame":
        """A table for reports, narrowed like ``trials`` and ``decisions``.

        ``"trials"``: one row a trial. ``"decisions"``: one row a decision. Both have the signature's fields in columns
        ``sig_*`` and the knobs in columns ``cfg_*``. ``"coverage"``: one row a (signature, direction, device, kernel)
        that was tried. ``"runs"``: one row a run. ``"winners"`` and ``"failures"``: the views of that name.
        ``"imported"``: one row a row of an imported pack. Times are timestamps in UTC.

        Raises:
          UsageError: an unknown frame or filter.
        """
        with storage_errors(self.path):
            return frames.read_frame(self._connection, name, trials.parameters(**filters))

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
        decided = [(problem, self._decide(problem)) for problem in self._problems(signatures)]
        with self.transaction():
            for problem, decisions in decided:
                decision_table.replace_decisions(
                    self._connection, self._references, problem, decisions
                )
        return sum(1 for _, decisions in decided if decisions)

    def decide(self, *, signatures: Iterable[Signature | str] | None = None) -> Iterator[Decision]:
        """Decides everything, or some signatures, from the trials as they are now, and stores nothing."""
        for problem in self._problems(signatures):
            yield from self._decide(problem)

    def decide_predicted(self) -> Iterator[Decision]:
        """Decisions by predictions, for problems on devices where nothing was measured; ``median_ns`` is None."""
        fates = (self.trials(status=status) for status in predictions.FATES)
        found = predictions.decide_predicted(itertools.chain.from_iterable(fates))
        yield from predictions.unmeasured(found, self.decide())

    def decisions(
        self,
        *,
        op: str | None = None,
        kernel: str | None = None,
        direction: str | None = None,
        signature: Signature | str | None = None,
        device: Device | str | None = None,
        rank: int | None = None,
    ) -> list[Decision]:
        """The decisions that fit, by signature, direction, device and rank; ``rank=0`` asks for the winners only.

        They are as of the last ``rebuild_decisions``.
        """
        filters = trials.parameters(
            op=op,
            kernel=kernel,
            direction=direction,
            signature=signature,
            device=device,
            rank=rank,
        )
        with storage_errors(self.path):
            return decision_table.read_decisions(self._connection, self._references, filters)

    def decision(
        self, signature: Signature, direction: str, device: Device, *, rank: int = 0
    ) -> Decision | None:
        """One decision as of the last ``rebuild_decisions``, by default the winner; None without one."""
        found = self.decisions(signature=signature, direction=direction, device=device, rank=rank)
        return found[0] if found else None

    @property
    def has_open_runs(self) -> bool:
        """True between ``begin_run`` and ``end_run``."""
        return bool(self._open_runs)

    def _problems(
        self, signatures: Iterable[Signature | str] | None
    ) -> list[decision_table.Problem]:
        texts = None if signatures is None else {str(s) for s in signatures}
        with storage_errors(self.path):
            return decision_table.open_problems(self._connection, texts)

    def _decide(self, problem: decision_table.Problem) -> tuple[Decision, ...]:
        with storage_errors(self.path):
            return decision_table.decide_problem(self._connection, self._references, problem)

    @contextlib.contextmanager
    def _recording(self, run_id: int) -> Iterator[None]:
        """One transaction of an open run."""
        self._check_run(run_id)
        with self.transaction():
            self._lock.check()
            yield

    def _check_run(self, run_id: int) -> None:
        if run_id not in self._open_runs:
            raise StorageError(f"run {run_id} is not open in this process; begin a new one")
