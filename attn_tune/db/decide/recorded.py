"""A recorded trial: a trial and the run that recorded it, as decisions compare them."""

import functools
from dataclasses import dataclass

from attn_tune.kernels.source import current_digest
from attn_tune.schema import Environment, Status, Trial
from attn_tune.schema.trial import lacks_a_library


@dataclass(frozen=True)
class RecordedTrial:
    """A trial with its run; samples of different runs are not compared if that can be avoided.

    Attributes:
      run: the id of the run.
      trial: the trial.
    """

    run: int
    trial: Trial

    @functools.cached_property
    def digest(self) -> str:
        """The digest of the config."""
        return self.trial.config_digest

    @functools.cached_property
    def software(self) -> str:
        """The digest of the environment."""
        return _digest(self.trial.environment)

    @property
    def source(self) -> str:
        """The digest of the kernel's source as it is called today; ``""`` is unknown."""
        return current_digest(self.trial.environment.source_hash)

    @property
    def was_tried(self) -> bool:
        """Whether it says something about its kernel: it ran or failed, and not for lack of a library."""
        trial = self.trial
        return trial.status.was_tried and not lacks_a_library(trial.status, trial.reason)

    @property
    def round_id(self) -> str:
        """The round of a final, ``""`` outside of finals."""
        measured = self.trial.measurement
        return measured.round_id if measured else ""

    @property
    def samples(self) -> tuple[int, ...]:
        """The samples in nanoseconds, in the order taken."""
        measured = self.trial.measurement
        return measured.samples_ns if measured else ()

    @functools.cached_property
    def worst(self) -> float | None:
        """The largest error over what is allowed; None where nothing was checked."""
        return max((error.ratio for error in self.trial.errors), default=None)

    @property
    def is_wrong(self) -> bool:
        """Whether it bars its config."""
        return self.trial.status.bars or (self.worst is not None and self.worst > 1)

    @property
    def is_refused(self) -> bool:
        """Whether its bits differ or it is unproven, in a sweep that did not ask for such: no older trial counts."""
        if self.trial.status.is_refused:
            return self.trial.repeatable is False
        return self.trial.status is Status.UNPROVEN


@functools.lru_cache(256)
def _digest(environment: Environment) -> str:
    """The digest, which takes longer to make than to find again."""
    return environment.digest
