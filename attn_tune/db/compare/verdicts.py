"""Verdicts on the winners of two sides, problem by problem, by the rule of decisions and a correction for their number.

A verdict needs a difference above 1 % and half a microsecond, above the noise of a config against itself, and one that
neither the bootstrap nor an exact test puts down to chance. Holm's correction keeps the probability that any verdict of
a comparison is false under ``WIN_ALPHA``.
"""

import enum
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from attn_tune.db.compare.sides import Evidence, Side, Times, timed_by
from attn_tune.db.decide.statistics import (
    FEW,
    MIN_GAIN,
    WIN_ALPHA,
    Comparison,
    compare_paired,
    compare_unpaired,
    holm,
    rank_sum,
)
from attn_tune.db.release.conflicts import MARGIN
from attn_tune.schema import Decision, Device, Rule, config_to_json
from attn_tune.schema.decision import MIN_GAIN_NS
from attn_tune.schema.words import duration

# Fewer programs that both sides timed say nothing about how far two sweeps are apart.
SHIFT_PROGRAMS = 8
# The share of the times between the bounds of an interval.
CONFIDENCE = 0.95

type Key = tuple[str, str, str]
# The text of a signature, and a direction.
type Problem = tuple[str, str]


class Verdict(enum.StrEnum):
    """The outcome for one problem."""

    WORSE = "worse"
    """B's winner takes longer than A's, beyond noise."""
    BETTER = "better"
    """B's winner takes less time than A's, beyond noise."""
    UNDECIDED = "undecided"
    """The evidence tells no difference that is worth having."""
    ONLY_A = "only_a"
    """B has no winner for the problem."""
    ONLY_B = "only_b"
    """A has no winner for the problem."""


class Basis(enum.StrEnum):
    """The evidence that a ratio is made of."""

    PAIRED = "paired"
    """Samples that were taken in turns, in finals that both databases hold."""
    UNPAIRED = "unpaired"
    """Samples of two sweeps."""
    MEDIANS = "medians"
    """Medians and bounds alone, where a pack is one of the sides."""
    NONE = ""
    """There is no time on one of the sides."""


@dataclass(frozen=True, kw_only=True)
class Compared:
    """The winners of one problem on one device.

    Attributes:
      a: A's winner, None without one.
      b: B's winner, None without one.
      verdict: the outcome.
      reason: the reason why it is undecided, empty for other verdicts.
      needs: what would decide it, empty for other verdicts.
      bound: the share of the slower time that a difference must exceed; None where no times are compared.
      basis: the evidence of the ratio.
      a_ns: A's time in nanoseconds.
      b_ns: B's time in nanoseconds.
      ratio: B's time over A's.
      low: the lower bound of the ratio at 95 %; of medians the least that their bounds allow.
      high: the upper bound of the ratio.
      chance: the two-sided probability of such a difference under chance alone, None without samples.
    """

    a: Decision | None
    b: Decision | None
    verdict: Verdict
    reason: str = ""
    needs: str = ""
    bound: float | None = None
    basis: Basis = Basis.NONE
    a_ns: int | None = None
    b_ns: int | None = None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    chance: float | None = None

    @property
    def one(self) -> Decision:
        """The winner of either side, for what they share: op, problem, direction and device."""
        found = self.a or self.b
        assert found is not None
        return found

    @property
    def changed(self) -> str:
        """``"kernel"`` or ``"config"`` where the sides chose another one; empty for the same and for one side alone."""
        if self.a is None or self.b is None:
            return ""
        if self.a.kernel != self.b.kernel:
            return "kernel"
        return "" if config_to_json(self.a.config) == config_to_json(self.b.config) else "config"


@dataclass(frozen=True, kw_only=True)
class Shift:
    """The distance of two sweeps of a device as a whole, by the configs that both timed with one software and source.

    Attributes:
      device: the device.
      programs: how many such configs there are.
      ratio: the median of B's times over A's.
      noise: the share by which the same program may seem to differ between the two. Of few programs that of the one
        that differs most.
      usual: the distance of most programs, as a natural logarithm.
      farthest: of each problem the largest distance of its programs, as a natural logarithm.
    """

    device: Device
    programs: int
    ratio: float
    noise: float
    usual: float = 0.0
    farthest: Mapping[Problem, float] = field(default_factory=dict[Problem, float])

    @property
    def is_known(self) -> bool:
        """Whether there are enough programs to tell the distance of the whole from that of single problems."""
        return self.programs >= SHIFT_PROGRAMS

    def is_told_by_others(self, problem: Problem) -> bool:
        """Whether programs of other problems than this one say how far the sweeps are apart."""
        return self.is_known or any(key != problem for key in self.farthest)

    def bound(self, problem: Problem) -> float:
        """The share that a difference must exceed. Where programs are few it is the largest of other problems."""
        if self.is_known:
            return self.noise
        others = [value for key, value in self.farthest.items() if key != problem] or list(self.farthest.values())
        return math.expm1(max(self.usual, *others)) if others else self.noise


@dataclass(frozen=True, kw_only=True)
class SidesCompared:
    """The comparison of two sides.

    Attributes:
      rows: the problems: worse, better, undecided, then those of one side; of each the slowest first.
      shifts: the distance of the two as a whole, for each device with a program in both.
      mean: the geometric mean of the ratios, None without any.
    """

    rows: tuple[Compared, ...]
    shifts: tuple[Shift, ...]
    mean: float | None


def compare_sides(
    a: Side, b: Side, *, margin: float = MIN_GAIN, shifts: Iterable[Shift] | None = None
) -> SidesCompared:
    """Compares the winners of ``b`` with those of ``a``; differences up to ``margin`` (a share) are none.

    ``shifts`` are those of the whole sides where ``a`` and ``b`` are parts of them; by default their own.
    """
    left, right = _winners(a.decisions), _winners(b.decisions)
    both = sorted(left.keys() & right.keys())
    by_device = {shift.device: shift for shift in (find_shifts(a, b) if shifts is None else shifts)}

    rows = _corrected(
        [
            _judge(before, after, a.evidence(before), b.evidence(after), margin, by_device.get(before.device))
            for before, after in ((left[key], right[key]) for key in both)
        ]
    )
    rows += [Compared(a=left[k], b=None, verdict=Verdict.ONLY_A, a_ns=left[k].median_ns) for k in left.keys() - right]
    rows += [Compared(a=None, b=right[k], verdict=Verdict.ONLY_B, b_ns=right[k].median_ns) for k in right.keys() - left]
    order = list(Verdict)
    rows.sort(key=lambda row: (order.index(row.verdict), -(row.ratio or 0.0), *_key(row.one)))
    logs = [math.log(row.ratio) for row in rows if row.ratio]
    devices = {left[key].device for key in both}
    return SidesCompared(
        rows=tuple(rows),
        shifts=tuple(shift for device, shift in by_device.items() if device in devices),
        mean=math.exp(statistics.fmean(logs)) if logs else None,
    )


def _key(decision: Decision) -> Key:
    return (decision.signature.text, decision.direction, decision.device.digest)


def _winners(decisions: Iterable[Decision]) -> dict[Key, Decision]:
    """The best decision of each problem."""
    return {_key(d): d for d in sorted(decisions, key=lambda d: d.rank, reverse=True)}


def _times(side: Side, other: Side) -> Times:
    """The times of a side's programs. Beside a pack, whose times are those of finals, what it chose has these too."""
    found = side.timed()
    if other.kind != "pack":
        return found
    chosen = timed_by(side.decisions)
    return {device: {**found.get(device, {}), **chosen.get(device, {})} for device in {**found, **chosen}}


def find_shifts(a: Side, b: Side) -> tuple[Shift, ...]:
    """The distance of two sides as a whole, for each device with a program in both."""
    before, after = _times(a, b), _times(b, a)
    shifts = []
    for device in sorted(before.keys() & after.keys(), key=lambda device: (str(device), device.digest)):
        ours, theirs = before[device], after[device]
        shared = sorted(ours.keys() & theirs.keys())
        if not shared:
            continue
        logs = [math.log(theirs[key] / ours[key]) for key in shared]
        middle = statistics.median(logs)
        # Three standard deviations, by the median distance from the median, which single problems do not move.
        spread = 3 * 1.4826 * statistics.median(abs(value - middle) for value in logs)
        farthest: dict[Problem, float] = defaultdict(float)
        for (signature, direction, *_), value in zip(shared, logs, strict=True):
            farthest[signature, direction] = max(farthest[signature, direction], abs(value))
        shifts.append(
            Shift(
                device=device,
                programs=len(logs),
                ratio=math.exp(middle),
                noise=math.expm1(
                    max(abs(middle) + spread, 0.0 if len(logs) >= SHIFT_PROGRAMS else max(farthest.values()))
                ),
                usual=abs(middle) + spread,
                farthest=farthest,
            )
        )
    return tuple(shifts)


def _judge(
    a: Decision, b: Decision, ours: Evidence | None, theirs: Evidence | None, margin: float, shift: Shift | None
) -> Compared:
    if Rule.PREDICTED in (a.rule, b.rule) or not a.median_ns or not b.median_ns:
        reason = "predicted, not measured" if Rule.PREDICTED in (a.rule, b.rule) else "no time is known"
        made = Compared(a=a, b=b, verdict=Verdict.UNDECIDED, a_ns=a.median_ns, b_ns=b.median_ns)
        return replace(made, reason=reason, needs="a sweep of both on the device")
    problem = (a.signature.text, a.direction)
    bound = shift.bound(problem) if shift else 0.0
    if ours is None or theirs is None:
        # A margin that was raised stands for the distance of the sweeps where no other program shows it.
        known = margin > MIN_GAIN or (shift is not None and shift.is_told_by_others(problem))
        made = _by_medians(a, b, max(margin, bound), is_distance_known=known)
        seen = ours or theirs
        return _undecided_if_disturbed(made, seen.disturbances) if seen else made
    return _by_samples(a, b, ours, theirs, margin, bound)


def _by_samples(a: Decision, b: Decision, ours: Evidence, theirs: Evidence, margin: float, shift: float) -> Compared:
    # The order of the sides changes nothing: what one way says is the reciprocal of the other.
    seed = " ".join((*_key(a), *sorted((config_to_json(a.config), config_to_json(b.config)))))
    shared = sorted(ours.rounds.keys() & theirs.rounds.keys())
    pairs = [pair for key in shared for pair in zip(ours.rounds[key], theirs.rounds[key], strict=False)]
    if pairs:
        basis = Basis.PAIRED
        b_over_a = compare_paired([(y, x) for x, y in pairs], seed=seed)
        a_over_b = compare_paired(pairs, seed=seed)
        chance = min(1.0, 2 * min(b_over_a.chance, a_over_b.chance))
        ours_ns, theirs_ns = ([pair[i] for pair in pairs] for i in (0, 1))
    else:
        basis, ours_ns, theirs_ns = Basis.UNPAIRED, sorted(ours.samples), sorted(theirs.samples)
        b_over_a = compare_unpaired(theirs_ns, ours_ns, seed=seed)
        a_over_b = compare_unpaired(ours_ns, theirs_ns, seed=seed)
        chance = rank_sum(ours_ns, theirs_ns)
    # What was timed in turns saw the same device.
    noise = max(margin, 0.0 if pairs else shift, ours.noise, theirs.noise)
    verdict = Verdict.UNDECIDED
    if b_over_a.a_wins(noise=noise):
        verdict = Verdict.BETTER
    elif a_over_b.a_wins(noise=noise):
        verdict = Verdict.WORSE
    a_ns, bound = int(statistics.median(ours_ns)), max(noise, MIN_GAIN)
    reason, needs = _reason(b_over_a, a_ns, bound, bound > margin) if verdict is Verdict.UNDECIDED else ("", "")
    tail = (1 + CONFIDENCE) / 2
    made = Compared(
        a=a,
        b=b,
        verdict=verdict,
        reason=reason,
        needs=needs,
        bound=bound,
        basis=basis,
        a_ns=a_ns,
        b_ns=int(statistics.median(theirs_ns)),
        ratio=b_over_a.ratio,
        low=1 / a_over_b.bound(tail),
        high=b_over_a.bound(tail),
        chance=chance,
    )
    return made if pairs else _undecided_if_disturbed(made, (*ours.disturbances, *theirs.disturbances))


def _undecided_if_disturbed(made: Compared, disturbances: Iterable[str]) -> Compared:
    if not (words := ", ".join(sorted(set(disturbances)))):
        return made
    needs = "finals in quiet: sweep again with --no-resume"
    return replace(made, verdict=Verdict.UNDECIDED, reason=f"a final was disturbed: {words}", needs=needs)


def _reason(b_over_a: Comparison, a_ns: int, bound: float, is_noise: bool) -> tuple[str, str]:
    """The reason why a comparison tells no difference, and what would decide it."""
    if b_over_a.count < FEW:
        return _few(b_over_a.count)
    if small := _small(b_over_a.ratio, b_over_a.difference_ns, bound):
        return small, _beyond(a_ns, bound, is_noise)
    return "could be chance", "more samples: sweep both again"


def _few(samples: int) -> tuple[str, str]:
    return f"too few samples: {samples}", f"{FEW} samples a side: sweep both again"


def _small(ratio: float, difference_ns: float, bound: float) -> str:
    """The bound that a difference does not exceed; empty where it exceeds all."""
    share = 1 - min(ratio, 1 / ratio)
    if share <= bound:
        return f"within {100 * bound:.1f} %"
    return f"within {MIN_GAIN_NS / 1000:g} us" if abs(difference_ns) <= MIN_GAIN_NS else ""


def _beyond(a_ns: int, bound: float, is_noise: bool) -> str:
    """The times of B that would be a difference; ``is_noise`` where less noise would lower the bound."""
    if bound >= 1:
        return "less noise: sweep again in quiet"
    high, low = max(a_ns / (1 - bound), a_ns + MIN_GAIN_NS), min(a_ns * (1 - bound), a_ns - MIN_GAIN_NS)
    words = f"B above {duration(high)}" + (f" or below {duration(low)}" if low > 0 else "")
    return f"{words}, or less noise: sweep again in quiet" if is_noise else f"{words}; less is no difference"


def _by_medians(a: Decision, b: Decision, noise: float, *, is_distance_known: bool) -> Compared:
    """Medians of two sessions, of which only the bounds of their regret say how noisy they were."""
    assert a.median_ns is not None
    assert b.median_ns is not None
    ratio, difference = b.median_ns / a.median_ns, b.median_ns - a.median_ns
    made = Compared(
        a=a,
        b=b,
        verdict=Verdict.UNDECIDED,
        basis=Basis.MEDIANS,
        a_ns=a.median_ns,
        b_ns=b.median_ns,
        ratio=ratio,
    )
    if a.regret_bound is None or b.regret_bound is None:
        needs = "lab databases in place of packs, or rows with a regret bound"
        return replace(made, reason="medians without a bound of their noise", needs=needs)
    if (samples := min(a.samples, b.samples)) < FEW:
        reason, needs = _few(samples)
        return replace(made, reason=reason, needs=needs)
    if not is_distance_known:
        reason = "no program of another problem is the same in both, so nothing tells how far the sweeps are apart"
        return replace(made, reason=reason, needs="lab databases in place of packs, or --margin PERCENT above 1")
    slack = (1 + max(noise, MARGIN)) * (1 + a.regret_bound) * (1 + b.regret_bound)
    # The same measure as for samples, a share of the slower time.
    bound = max(1 - 1 / slack, MIN_GAIN)
    made = replace(made, low=ratio / slack, high=ratio * slack, bound=bound)
    if reason := _small(ratio, difference, bound):
        return replace(made, reason=reason, needs=_beyond(a.median_ns, bound, is_noise=True))
    return replace(made, verdict=Verdict.WORSE if ratio > 1 else Verdict.BETTER)


def _corrected(rows: list[Compared]) -> list[Compared]:
    """The rows with only those verdicts on samples that stay when all comparisons share one chance of being wrong."""
    tested = [place for place, row in enumerate(rows) if row.chance is not None]
    stays = holm([rows[place].chance or 0.0 for place in tested], WIN_ALPHA)
    for place, keep in zip(tested, stays, strict=True):
        if not keep and rows[place].verdict is not Verdict.UNDECIDED:
            reason = f"could be chance among {len(tested)} comparisons" if len(tested) > 1 else "could be chance"
            needs = "more samples: sweep both again" + (", or fewer problems at once" if len(tested) > 1 else "")
            rows[place] = replace(rows[place], verdict=Verdict.UNDECIDED, reason=reason, needs=needs)
    return rows
