"""What one trial says to a decision: its config, whether it was right, its samples."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from attn_tune.schema import Device, Environment, OutputError, Signature, Status, Trial

# (signature, direction, device): one thing to decide.
type Problem = tuple[Signature, str, Device]


@dataclass(slots=True)
class Finding:
    """A trial as far as a decision looks at it, and the run it belongs to.

    Samples of different runs are not compared when that can be avoided. ``digest`` is the config's, ``software`` the
    environment's; ``worst`` is the largest error over what is allowed, None where nothing was checked. ``repeatable``
    and ``features`` as in ``Trial``.
    """

    run: int
    problem: Problem
    kernel: str
    part: str
    environment: Environment
    software: str
    config: Mapping[str, Any]
    digest: str
    status: Status
    is_heuristic: bool
    round_id: str
    worst: float | None
    started_us: int
    samples: tuple[int, ...]
    repeatable: bool | None = None
    features: int | None = None

    @classmethod
    def of(cls, run: int, trial: Trial) -> Self:
        """What ``trial`` says, of the run with that id."""
        measured = trial.measurement
        return cls(
            run=run,
            problem=(trial.signature, trial.direction, trial.device),
            kernel=trial.kernel,
            part=trial.part,
            environment=trial.environment,
            software=_name(trial.environment),
            config=trial.config,
            digest=trial.config_digest,
            status=trial.status,
            is_heuristic=trial.is_heuristic,
            round_id=measured.round_id if measured else "",
            worst=worst_ratio(trial.errors),
            started_us=trial.started_us,
            samples=measured.samples_ns if measured else (),
            repeatable=trial.repeatable,
            features=trial.features,
        )

    @property
    def is_wrong(self) -> bool:
        """Whether it bars its config."""
        return self.status.bars or (self.worst is not None and self.worst > 1)

    @property
    def is_refused(self) -> bool:
        """Whether its bits differ or it is unproven, in a sweep that did not ask for such: no older trial counts."""
        if self.status is Status.UNSUPPORTED:
            return self.repeatable is False
        return self.status is Status.UNPROVEN


def worst_ratio(errors: tuple[OutputError, ...]) -> float | None:
    """The largest error over what is allowed; None where nothing was checked."""
    return max((error.ratio for error in errors), default=None)


@functools.lru_cache(256)
def _name(environment: Environment) -> str:
    """The digest, which takes longer to make than to find again."""
    return environment.digest
