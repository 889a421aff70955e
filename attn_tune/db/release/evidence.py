"""Evidence of one problem: its trials, put together by config, as the release gate asks for them."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from attn_tune.db.decide.statistics import whole_median
from attn_tune.schema import Decision, Environment, Stage, Status, Trial, config_digest
from attn_tune.schema.conditions import Conditions
from attn_tune.schema.trial import WHOLE, lacks_a_library


@dataclass(slots=True)
class Record:
    """The trials of one config of one kernel in one environment, put together.

    Attributes:
      config: the knobs, as plain data.
      environment: the software.
      is_heuristic: whether the kernel would choose it without tuning.
      outputs: the outputs that were compared with the reference.
      worst_error: the largest error over what is allowed, None where nothing was compared.
      samples: the samples of its searches, in nanoseconds.
      finals: the samples of its finals, in nanoseconds.
      failure: its last failure in one line, ``""`` without one.
      conditions: the state of the device during its newest final, None where it is unknown.
    """

    config: Mapping[str, Any]
    environment: Environment
    is_heuristic: bool = False
    outputs: set[str] = field(default_factory=set)
    worst_error: float | None = None
    samples: list[int] = field(default_factory=list)
    finals: list[int] = field(default_factory=list)
    failure: str = ""
    conditions: Conditions | None = None
    _newest_us: int = -1

    @property
    def median_ns(self) -> int | None:
        """The median of the finals where there are any; None without a measurement."""
        samples = self.finals or self.samples
        return whole_median(samples) if samples else None

    def add(self, trial: Trial) -> None:
        """Takes one trial in."""
        self.is_heuristic |= trial.is_heuristic
        if trial.status.is_failure and not lacks_a_library(trial.status, trial.reason):
            self.failure = f"{trial.status}: {trial.reason}".splitlines()[0][:200]
        if trial.status is not Status.OK or trial.measurement is None:
            return
        self.outputs |= {error.output for error in trial.errors}
        if trial.worst_error is not None:
            self.worst_error = max(self.worst_error or 0.0, trial.worst_error.ratio)
            if trial.worst_error.ratio > 1:
                self.failure = f"{trial.worst_error.output} is wrong"
        if trial.stage is Stage.FINAL and trial.started_us >= self._newest_us:
            self._newest_us, self.conditions = trial.started_us, trial.conditions
        found = self.finals if trial.stage is Stage.FINAL else self.samples
        found.extend(trial.measurement.samples_ns)


class Evidence:
    """The trials of one (signature, direction, device)."""

    def __init__(self, trials: Iterable[Trial]):
        self._records: dict[tuple[str, str, str, str], Record] = {}
        for trial in trials:
            key = (trial.kernel, trial.environment.digest, trial.part, trial.config_digest)
            record = self._records.setdefault(key, Record(trial.config, trial.environment))
            record.add(trial)

    def of(self, decision: Decision) -> Record | None:
        """The record of the config of ``decision``."""
        return self.at(decision.kernel, decision.environment, decision.config)

    def at(self, kernel: str, environment: Environment, config: Mapping[str, Any], part: str = WHOLE) -> Record | None:
        """The record of one config, or of one config of a part."""
        return self._records.get((kernel, environment.digest, part, config_digest(config)))

    def heuristic(self, kernel: str, environment: Environment) -> Record | None:
        """The record of the untuned config, if it ran right."""
        for (name, env, part, _), record in self._records.items():
            if (name, env, part) == (kernel, environment.digest, WHOLE) and record.is_heuristic:
                return record if record.median_ns is not None and not record.failure else None
        return None

    def environments(self, kernel: str) -> list[Environment]:
        """The environments in which the kernel has trials of a whole direction."""
        found = {
            env: record.environment
            for (name, env, part, _), record in self._records.items()
            if (name, part) == (kernel, WHOLE)
        }
        return list(found.values())

    def failed_part(self, decision: Decision) -> str:
        """The failure of a part of the chosen config when it was searched alone, ``""`` without one."""
        failures = (f"{part}: {r.failure}" for part, r in self._parts_of(decision) if r.failure)
        return next(failures, "")

    def proven_outputs(self, decision: Decision) -> set[str]:
        """The outputs that were compared with the reference, by the whole or by its parts."""
        record = self.of(decision)
        proven = set(record.outputs) if record else set()
        return proven.union(*(part.outputs for _, part in self._parts_of(decision)))

    def _parts_of(self, decision: Decision) -> Iterator[tuple[str, Record]]:
        """The parts of the chosen config, as they were searched alone."""
        for part, knobs in decision.config.items():
            if isinstance(knobs, Mapping):
                record = self.at(decision.kernel, decision.environment, knobs, part)
                if record is not None:
                    yield part, record
