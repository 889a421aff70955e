"""The choice of a config: the best config of each kernel, then the best kernel. Pure functions.

Only whole-direction trials that are ok and right take part, from the newest environment in which the kernel has any.
Within a kernel the untuned config is the incumbent and stays unless another beats it beyond noise: that of the samples,
and that which a config shows against itself where it took part in finals twice.
"""

import dataclasses
import functools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from attn_tune.db.decide.recorded import RecordedTrial
from attn_tune.db.decide.statistics import (
    Comparison,
    compare_paired,
    compare_unpaired,
    whole_median,
)
from attn_tune.schema import Decision, Device, Environment, Rule, Status, config_digest
from attn_tune.schema.trial import WHOLE, is_twin, twin_round

# How many of the fastest are compared one by one; the rest are too slow to matter.
CONTENDERS = 16


@dataclass(kw_only=True)
class Candidate:
    """One right config with its measurements in one environment.

    Attributes:
      digest: the digest of the config.
      config: the knobs, as plain data.
      is_heuristic: whether the kernel would choose it without tuning.
      worst_error: the largest error over what is allowed, None where nothing was checked.
      measured: its measured trials. ``(started, run)`` orders their runs, whatever the ids are.
    """

    digest: str
    config: Mapping[str, Any]
    is_heuristic: bool = False
    worst_error: float | None = None
    measured: list[RecordedTrial] = field(default_factory=list)

    @functools.cached_property
    def rounds(self) -> dict[tuple[int, str], tuple[int, ...]]:
        """The samples of its finals, by run and round."""
        return {
            (m.run, m.round_id): m.samples
            for m in self.measured
            if m.round_id and not is_twin(m.round_id)
        }

    @functools.cached_property
    def twins(self) -> dict[tuple[int, str], tuple[int, ...]]:
        """Its second measurement in a round, by the same keys as ``rounds``."""
        second = {(m.run, m.round_id): m.samples for m in self.measured}
        found = {key: (key[0], twin_round(key[1])) for key in self.rounds}
        return {key: second[twin] for key, twin in found.items() if twin in second}

    @functools.cached_property
    def newest_run(self) -> int:
        """The newest run with finals; without finals, the newest."""
        finals = [m for m in self.measured if m.round_id]
        return max(finals or self.measured, key=lambda m: (m.trial.started_us, m.run)).run

    def samples(self, run: int) -> tuple[int, ...]:
        """The samples of one run; of its finals, when it has some."""
        found = [m for m in self.measured if m.run == run and not is_twin(m.round_id)]
        finals = [m for m in found if m.round_id]
        return tuple(s for m in finals or found for s in m.samples)

    @functools.cached_property
    def median_ns(self) -> int:
        """The median of its newest run."""
        return whole_median(self.samples(self.newest_run))

    @property
    def repeatable(self) -> bool | None:
        """False where any trial saw different bits; None where that was not checked."""
        seen = {m.trial.repeatable for m in self.measured} - {None}
        return None if not seen else False not in seen

    @property
    def features(self) -> int | None:
        """The most feature problems that a trial of it passed; None where that is unknown."""
        passed = (m.trial.features for m in self.measured)
        return max((count for count in passed if count is not None), default=None)


def decide(trials: Iterable[RecordedTrial]) -> tuple[Decision, ...]:
    """Decides one (op, direction, signature, device); rank 0 first. Empty when nothing was right.

    The order of ``trials`` does not matter.
    """
    by_kernel: dict[str, list[RecordedTrial]] = defaultdict(list)
    for one in trials:
        by_kernel[one.trial.kernel].append(one)
    entries = {kernel: _entries_of(found) for kernel, found in by_kernel.items()}
    noise = max((_noise(e) for several in entries.values() for e in several), default=0.0)
    chosen = [
        _decide_kernel(by_kernel[kernel], entries[kernel], noise) for kernel in sorted(by_kernel)
    ]
    found = sorted((d for d in chosen if d), key=lambda d: (d.median_ns, d.kernel))
    return tuple(dataclasses.replace(d, rank=rank) for rank, d in enumerate(found))


def _entries_of(trials: Sequence[RecordedTrial]) -> list[Candidate]:
    """The configs that are right in the newest environment."""
    environment = newest_environment(trials)
    return [] if environment is None else right_entries(trials, environment)


def _noise(entry: Candidate) -> float:
    """The share by which a config seems to differ from itself: the median's distance, of its newest round."""
    newest = [key for key in entry.twins if key[0] == entry.newest_run]
    return max((abs(1 - _against_itself(entry, key).ratio) for key in newest), default=0.0)


def _against_itself(entry: Candidate, key: tuple[int, str]) -> Comparison:
    pairs = sorted(zip(entry.rounds[key], entry.twins[key], strict=False))
    return compare_paired(pairs, seed=f"{entry.digest} {key[1]}")


def _decide_kernel(
    trials: Sequence[RecordedTrial], entries: Sequence[Candidate], noise: float
) -> Decision | None:
    environment = newest_environment(trials)
    if environment is None or not entries:
        return None
    contenders = _contenders(entries)
    incumbent = next((e for e in contenders if e.is_heuristic), None)
    heuristic = incumbent or next((e for e in entries if e.is_heuristic), None)
    first = trials[0].trial
    kernel, signature, direction = first.kernel, first.signature, first.direction
    device = first.device
    comparisons = _Comparisons(f"{signature.text} {direction} {_digest(device)}")
    winner, has_won = _pick(contenders, incumbent, comparisons, noise)
    rivals = [e for e in contenders if e is not winner]
    against = {e.digest: comparisons.of(winner, e) for e in rivals}
    ties = tuple(sorted(d for d, c in against.items() if not c.a_wins(noise=noise)))
    if incumbent is None:
        has_won = not ties
    rule = Rule.ONLY if len(entries) == 1 else Rule.WINNER if has_won else Rule.TIE
    # Both times from one run, so that their ratio means something.
    shared = _shared_run(winner, heuristic) if heuristic else None
    samples = winner.samples(winner.newest_run if shared is None else shared)
    median_ns, heuristic_ns = whole_median(samples), None
    if heuristic:
        heuristic_ns = (
            heuristic.median_ns if shared is None else whole_median(heuristic.samples(shared))
        )
    return Decision(
        op=signature.op,
        direction=direction,
        signature=signature,
        device=device,
        environment=environment,
        kernel=kernel,
        config=dict(winner.config),
        rule=rule,
        median_ns=median_ns,
        heuristic_ns=heuristic_ns,
        gain=heuristic_ns / median_ns if heuristic_ns is not None else None,
        regret_bound=_regret_bound(against.values()),
        worst_error=winner.worst_error,
        ties=ties,
        samples=len(samples),
        trials=len(trials),
        repeatable=winner.repeatable,
        features=winner.features,
        contract=signature.version,
    )


def newest_environment(trials: Sequence[RecordedTrial]) -> Environment | None:
    """The newest environment in which a whole direction was ok."""
    found = [f for f in trials if f.trial.status is Status.OK and f.trial.part == WHOLE]
    newest = max(found, key=lambda f: (f.trial.started_us, f.software), default=None)
    return newest.trial.environment if newest else None


def right_entries(trials: Sequence[RecordedTrial], environment: Environment) -> list[Candidate]:
    """The configs that were right in ``environment`` and wrong neither there nor in a newer one.

    Trials of a config from before it was last refused, for its bits or as unproven, do not count.
    """
    software = _digest(environment)
    barred = _barred(trials, software)
    refused = _refused(trials, software)
    entries: dict[str, Candidate] = {}
    for f in sorted(trials, key=lambda f: (f.trial.started_us, f.digest)):
        if f.trial.status is not Status.OK or f.trial.part != WHOLE or f.software != software:
            continue
        if barred and _is_barred(f, barred):
            continue
        if f.trial.started_us <= refused.get(f.digest, -1):
            continue
        entry = entries.get(f.digest)
        if entry is None:
            entry = entries[f.digest] = Candidate(digest=f.digest, config=f.trial.config)
        entry.is_heuristic |= f.trial.is_heuristic
        if f.worst is not None:
            entry.worst_error = max(entry.worst_error or 0.0, f.worst)
        entry.measured.append(f)
    # What was never checked is not right; finals may rely on the check of the search.
    return [e for e in entries.values() if e.worst_error is not None and e.worst_error <= 1]


def _barred(trials: Sequence[RecordedTrial], software: str) -> set[tuple[str, str]]:
    """``(part, config digest)`` that were wrong or crashed in this or a newer environment."""
    wrong = [f for f in trials if f.is_wrong]
    return {(f.trial.part, f.digest) for f in _not_older(wrong, trials, software)}


def _refused(trials: Sequence[RecordedTrial], software: str) -> dict[str, int]:
    """The start of the trial that last refused each whole config, in microseconds, by the config's digest.

    Refused are other bits and ``unproven``. Trials of this environment and of newer ones count.
    """
    found = [f for f in trials if f.is_refused and f.trial.part == WHOLE]
    last: dict[str, int] = defaultdict(int)
    for f in _not_older(found, trials, software):
        last[f.digest] = max(last[f.digest], f.trial.started_us)
    return last


def _not_older(
    some: Sequence[RecordedTrial], trials: Sequence[RecordedTrial], software: str
) -> list[RecordedTrial]:
    """The trials among ``some`` whose environment was last in use no earlier than ``software``."""
    if not some:
        return []
    age: dict[str, int] = defaultdict(int)
    for f in trials:
        age[f.software] = max(age[f.software], f.trial.started_us)
    return [f for f in some if age[f.software] >= age[software]]


def _is_barred(one: RecordedTrial, barred: set[tuple[str, str]]) -> bool:
    if (WHOLE, one.digest) in barred:
        return True
    config = one.trial.config
    parts = {part for part, _ in barred if part != WHOLE}
    return any(
        isinstance(config.get(part), Mapping) and (part, config_digest(config[part])) in barred
        for part in parts
    )


def _contenders(entries: Sequence[Candidate]) -> list[Candidate]:
    """The untuned config and the fastest: of the finalists if it is one of them or never ran, else of all."""
    finalists = [e for e in entries if e.rounds]
    heuristics = [e for e in entries if e.is_heuristic]
    pool = finalists if finalists and all(e.rounds for e in heuristics) else entries
    fastest = sorted(pool, key=lambda e: (e.median_ns, e.digest))[:CONTENDERS]
    return fastest + [e for e in pool if e.is_heuristic and e not in fastest]


def _regret_bound(against: Iterable[Comparison]) -> float:
    """The share by which the winner may be slower than the best rival."""
    bound = 1.0
    for comparison in sorted(against, key=lambda c: c.ratio, reverse=True):
        if comparison.exceeds(bound):
            bound = comparison.upper
    return bound - 1


def _pick(
    contenders: Sequence[Candidate],
    incumbent: Candidate | None,
    comparisons: "_Comparisons",
    noise: float,
) -> tuple[Candidate, bool]:
    """The config to use, and whether it beat the incumbent."""
    if incumbent is None:
        return contenders[0], False
    challengers = [e for e in contenders if e is not incumbent]
    compared = [(comparisons.of(e, incumbent), e) for e in challengers]
    for comparison, entry in sorted(compared, key=lambda item: (item[0].ratio, item[1].digest)):
        if comparison.a_wins(among=len(challengers), noise=noise):
            return entry, True
    return incumbent, False


class _Comparisons:
    """The comparisons of one problem, each made once: those with the incumbent are asked for again."""

    def __init__(self, seed: str):
        self._seed = seed
        self._known: dict[tuple[str, str], Comparison] = {}

    def of(self, a: Candidate, b: Candidate) -> Comparison:
        key = (a.digest, b.digest)
        if key not in self._known:
            self._known[key] = _compare(a, b, f"{self._seed} {a.digest} {b.digest}")
        return self._known[key]


def _compare(a: Candidate, b: Candidate, seed: str) -> Comparison:
    left, right = a.rounds, b.rounds
    pairs = [
        pair
        for key in sorted(left.keys() & right.keys())
        for pair in zip(left[key], right[key], strict=False)
    ]
    if pairs:
        return compare_paired(sorted(pairs), seed=seed)
    shared = _shared_run(a, b)
    left_run, right_run = (a.newest_run, b.newest_run) if shared is None else (shared, shared)
    return compare_unpaired(sorted(a.samples(left_run)), sorted(b.samples(right_run)), seed=seed)


def _shared_run(a: Candidate, b: Candidate) -> int | None:
    """The newest run that measured both, one with finals of both when there is one."""

    def runs(entry: Candidate, *, finals: bool) -> set[int]:
        return {m.run for m in entry.measured if m.round_id or not finals}

    for finals in (True, False):
        both = runs(a, finals=finals) & runs(b, finals=finals)
        if both:
            return max((m.trial.started_us, m.run) for m in a.measured if m.run in both)[1]
    return None


@functools.lru_cache(256)
def _digest(named: Device | Environment) -> str:
    """The digest, which takes longer to make than to find again."""
    return named.digest
