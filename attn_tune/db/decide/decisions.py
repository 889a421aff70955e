"""The choice of a config: the best config of each kernel, then the best kernel. Pure functions.

Only whole-direction trials that are ok and right take part, from the newest environment in which the kernel has any.
A source of the kernel that was tried later, and of which none is right, leaves the kernel without a decision: what is
known of an older source does not speak for it.
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
from attn_tune.schema import Decision, Rule, Status, config_digest
from attn_tune.schema.trial import WHOLE, is_twin, twin_round

# How many of the fastest are compared one by one; the rest are too slow to matter.
CONTENDERS = 16


@dataclass(kw_only=True, eq=False)
class Candidate:
    """One right config with its measurements in one environment.

    Attributes:
      digest: the digest of the config.
      config: the knobs, as plain data.
      is_heuristic: whether the kernel would choose it without tuning.
      worst_error: the largest error over what is allowed, None where nothing was checked.
      measured: its measured trials. ``(started, run)`` orders their runs; ids need not.
    """

    digest: str
    config: Mapping[str, Any]
    is_heuristic: bool = False
    worst_error: float | None = None
    measured: list[RecordedTrial] = field(default_factory=list)

    @functools.cached_property
    def rounds(self) -> dict[tuple[int, str], tuple[int, ...]]:
        """The samples of its finals, by run and round."""
        return {(m.run, m.round_id): m.samples for m in self.measured if m.round_id and not is_twin(m.round_id)}

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
        """The most feature problems that a trial of it passed; None where that is unknown.

        They are run for configs that come to finals: one that never did has passed none.
        """
        passed = (m.trial.features for m in self.measured)
        unknown = None if any(m.round_id for m in self.measured) else 0
        return max((count for count in passed if count is not None), default=unknown)


def decide(trials: Iterable[RecordedTrial]) -> tuple[Decision, ...]:
    """Decides one (op, direction, signature, device); rank 0 first. Empty when nothing was right.

    The order of ``trials`` does not matter.
    """
    by_kernel: dict[str, list[RecordedTrial]] = defaultdict(list)
    for one in trials:
        by_kernel[one.trial.kernel].append(one)
    entries = {kernel: right_entries(found) for kernel, found in sorted(by_kernel.items())}
    noise = max((noise_of(e) for several in entries.values() for e in several), default=0.0)
    chosen = [_decide_kernel(by_kernel[k], several, noise) for k, several in entries.items() if several]
    found = sorted(chosen, key=lambda d: (d.median_ns, d.kernel))
    return tuple(dataclasses.replace(d, rank=rank) for rank, d in enumerate(found))


def noise_of(entry: Candidate) -> float:
    """The share by which a config seems to differ from itself: the median's distance, of its newest round."""
    against_itself = [
        compare_paired(sorted(zip(entry.rounds[key], twin, strict=False)), seed=f"{entry.digest} {key[1]}")
        for key, twin in entry.twins.items()
        if key[0] == entry.newest_run
    ]
    return max((abs(1 - comparison.ratio) for comparison in against_itself), default=0.0)


def _decide_kernel(trials: Sequence[RecordedTrial], entries: Sequence[Candidate], noise: float) -> Decision:
    fastest = contenders(entries)
    incumbent = next((e for e in fastest if e.is_heuristic), None)
    heuristic = incumbent or next((e for e in entries if e.is_heuristic), None)
    first = entries[0].measured[0].trial
    seed = f"{first.signature.text} {first.direction} {first.device.digest}"

    @functools.cache  # those with the incumbent are asked for again
    def against_one(a: Candidate, b: Candidate) -> Comparison:
        return compare(a, b, seed)

    winner, has_won = fastest[0], False
    if incumbent is not None:
        challengers = [e for e in fastest if e is not incumbent]
        challengers.sort(key=lambda e: (against_one(e, incumbent).ratio, e.digest))
        count = len(challengers)
        beats = (e for e in challengers if against_one(e, incumbent).a_wins(among=count, noise=noise))
        winner = next(beats, incumbent)
        has_won = winner is not incumbent
    against = {e.digest: against_one(winner, e) for e in fastest if e is not winner}
    ties = tuple(sorted(d for d, c in against.items() if not c.a_wins(noise=noise)))
    if incumbent is None:
        has_won = not ties
    # Both times from one run, so that their ratio means something.
    shared = shared_run(winner, heuristic) if heuristic else None
    samples = winner.samples(winner.newest_run if shared is None else shared)
    median_ns, heuristic_ns = whole_median(samples), None
    if heuristic:
        heuristic_ns = heuristic.median_ns if shared is None else whole_median(heuristic.samples(shared))
    # The upper bound of a comparison is never above its extremes, and those cost nothing.
    bounds = [c.upper for c in against.values() if c.extremes > 1]
    return Decision(
        op=first.signature.op,
        direction=first.direction,
        signature=first.signature,
        device=first.device,
        environment=first.environment,
        kernel=first.kernel,
        config=dict(winner.config),
        rule=_rule(winner, entries, has_won=has_won),
        median_ns=median_ns,
        heuristic_ns=heuristic_ns,
        gain=heuristic_ns / median_ns if heuristic_ns is not None else None,
        regret_bound=max([1.0, *bounds]) - 1 if winner.rounds else None,
        worst_error=winner.worst_error,
        ties=ties,
        samples=len(samples),
        trials=len(trials),
        repeatable=winner.repeatable,
        features=winner.features,
        contract=first.signature.version,
    )


def _rule(winner: Candidate, entries: Sequence[Candidate], *, has_won: bool) -> Rule:
    if not winner.rounds:
        return Rule.SEARCH
    return Rule.ONLY if len(entries) == 1 else Rule.WINNER if has_won else Rule.TIE


def right_entries(trials: Sequence[RecordedTrial]) -> list[Candidate]:
    """The configs that were right in the newest environment of an ok whole, and wrong neither there nor in a newer one.

    There is none where another source was tried later and is not right. Trials of a config from before it was last
    refused, for its bits or as unproven, do not count.
    """
    right = _ok_wholes(trials)
    if not right or find_outvoted(trials):
        return []
    software = _newest(right).software
    age: dict[str, int] = defaultdict(int)
    for f in trials:
        age[f.software] = max(age[f.software], f.trial.started_us)
    barred: set[tuple[str, str]] = set()
    refused: dict[str, int] = {}
    for f in trials:
        if age[f.software] < age[software]:
            continue
        if f.is_wrong:
            barred.add((f.trial.part, f.digest))
        if f.is_refused and f.trial.part == WHOLE:
            refused[f.digest] = max(refused.get(f.digest, 0), f.trial.started_us)
    entries: dict[str, Candidate] = {}
    for f in sorted(right, key=lambda f: (f.trial.started_us, f.digest)):
        if f.software != software or f.trial.started_us <= refused.get(f.digest, -1):
            continue
        if _is_barred(f, barred):
            continue
        entry = entries.setdefault(f.digest, Candidate(digest=f.digest, config=f.trial.config))
        entry.is_heuristic |= f.trial.is_heuristic
        if f.worst is not None:
            entry.worst_error = max(entry.worst_error or 0.0, f.worst)
        entry.measured.append(f)
    # What was never checked is not right; finals may rely on the check of the search.
    return [e for e in entries.values() if e.worst_error is not None and e.worst_error <= 1]


def find_outvoted(trials: Iterable[RecordedTrial]) -> RecordedTrial | None:
    """The newest ok whole of one kernel and problem, where another source was tried later and is not right; else None.

    Before a search of parts is done, some are right and no whole is: such a source has not failed yet.
    """
    tried = [f for f in trials if f.was_tried]
    right = _ok_wholes(tried)
    if not right:
        return None
    newest = _newest(right)
    for source in {f.source for f in tried} - {newest.source}:
        # What was right of it is older than the newest that was: it was wrong since, or is searched by its parts.
        later = [f for f in tried if f.source == source and f.trial.started_us > newest.trial.started_us]
        if later and not _is_under_way(later):
            return newest
    return None


def _ok_wholes(trials: Iterable[RecordedTrial]) -> list[RecordedTrial]:
    return [f for f in trials if f.trial.status is Status.OK and f.trial.part == WHOLE]


def _newest(trials: Iterable[RecordedTrial]) -> RecordedTrial:
    return max(trials, key=lambda f: (f.trial.started_us, f.software))


def _is_under_way(tried: Sequence[RecordedTrial]) -> bool:
    """Whether parts ran right and no whole was wrong."""
    has_right_parts = any(f.trial.status is Status.OK and not f.is_wrong for f in tried)
    return has_right_parts and not any(f.is_wrong and f.trial.part == WHOLE for f in tried)


def _is_barred(one: RecordedTrial, barred: set[tuple[str, str]]) -> bool:
    if (WHOLE, one.digest) in barred:
        return True
    config = one.trial.config
    parts = {part for part, _ in barred if part != WHOLE}
    return any(
        isinstance(config.get(part), Mapping) and (part, config_digest(config[part])) in barred for part in parts
    )


def contenders(entries: Sequence[Candidate]) -> list[Candidate]:
    """The untuned config and the fastest: of the finalists if it is one of them or never ran, else of all."""
    finalists = [e for e in entries if e.rounds]
    heuristics = [e for e in entries if e.is_heuristic]
    pool = finalists if finalists and all(e.rounds for e in heuristics) else entries
    fastest = sorted(pool, key=lambda e: (e.median_ns, e.digest))[:CONTENDERS]
    return fastest + [e for e in pool if e.is_heuristic and e not in fastest]


def compare(a: Candidate, b: Candidate, seed: str) -> Comparison:
    """Compares ``a`` with ``b``: by pairs where finals took them in turns, else by samples of one run.

    ``seed`` names the problem, so that the resamples are the same each time.
    """
    seed = f"{seed} {a.digest} {b.digest}"
    left, right = a.rounds, b.rounds
    pairs = [pair for key in sorted(left.keys() & right.keys()) for pair in zip(left[key], right[key], strict=False)]
    if pairs:
        return compare_paired(sorted(pairs), seed=seed)
    shared = shared_run(a, b)
    left_run, right_run = (a.newest_run, b.newest_run) if shared is None else (shared, shared)
    return compare_unpaired(sorted(a.samples(left_run)), sorted(b.samples(right_run)), seed=seed)


def shared_run(a: Candidate, b: Candidate) -> int | None:
    """The newest run that measured both, one with finals of both when there is one."""

    def runs(entry: Candidate, *, finals: bool) -> set[int]:
        return {m.run for m in entry.measured if m.round_id or not finals}

    for finals in (True, False):
        both = runs(a, finals=finals) & runs(b, finals=finals)
        if both:
            return max((m.trial.started_us, m.run) for m in a.measured if m.run in both)[1]
    return None
