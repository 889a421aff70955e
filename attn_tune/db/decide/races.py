"""Races: the samples behind one decision, and how surely the fastest challenger differs from the untuned config."""

from collections.abc import Sequence
from dataclasses import dataclass

from attn_tune.db.decide.decisions import Candidate, compare, contenders, right_entries, shared_run
from attn_tune.db.decide.recorded import RecordedTrial
from attn_tune.db.decide.statistics import FEW, Comparison
from attn_tune.schema import Decision, config_to_json

# Of the interval that is shown: half of it lies beyond each end.
INTERVAL_ALPHA = 0.05


@dataclass(frozen=True, kw_only=True, slots=True)
class Race:
    """The untuned config and the fastest challenger of one decision, with the samples that were compared.

    Attributes:
      op: the op.
      kernel: ``"op/name"``.
      direction: the direction.
      signature: the text of the problem.
      device: the device's name, with its partition.
      rule: the rule of the decision.
      untuned_config: the untuned config as JSON.
      rival_config: that of the challenger: of the winner, or in a tie of the one that came nearest.
      speedup: time of the untuned config over that of the challenger: the median of the ratios of turns, a *paired
        speedup*; without turns the ratio of medians.
      low, high: the interval of ``speedup`` at 95 %; with few samples the extremes that they allow.
      is_paired: whether both were measured in turns, so that samples of one place may be compared.
      untuned_ns: the samples of the untuned config, nanoseconds, in the order taken.
      rival_ns: those of the challenger; of pairs, place by place those of the same turn.
      rounds: the number of samples of each round, in the order of both lists; one entry outside of finals.
    """

    op: str
    kernel: str
    direction: str
    signature: str
    device: str
    rule: str
    untuned_config: str
    rival_config: str
    speedup: float
    low: float
    high: float
    is_paired: bool
    untuned_ns: tuple[int, ...]
    rival_ns: tuple[int, ...]
    rounds: tuple[int, ...]


def race_of(decision: Decision, trials: Sequence[RecordedTrial]) -> Race | None:
    """The race of ``decision`` among ``trials`` of its problem, device and kernel; None without default or rival."""
    known = contenders(right_entries(trials))
    default = next((entry for entry in known if entry.is_heuristic), None)
    others = [entry for entry in known if entry is not default]
    chosen = config_to_json(decision.config)
    if default is None or not others:
        return None
    rival = next((entry for entry in others if config_to_json(entry.config) == chosen), None)
    seed = f"{decision.signature.text} {decision.direction} {decision.device.digest}"
    if rival is None:
        rival = min(others, key=lambda entry: (compare(entry, default, seed).ratio, entry.digest))
    result = compare(rival, default, seed)
    low, high = _interval(result)
    untuned_ns, rival_ns, rounds = _samples(default, rival)
    return Race(
        op=decision.op,
        kernel=decision.kernel,
        direction=decision.direction,
        signature=decision.signature.text,
        device=str(decision.device),
        rule=str(decision.rule),
        untuned_config=config_to_json(default.config),
        rival_config=config_to_json(rival.config),
        speedup=1 / result.ratio,
        low=1 / high,
        high=1 / low,
        is_paired=bool(default.rounds.keys() & rival.rounds.keys()),
        untuned_ns=untuned_ns,
        rival_ns=rival_ns,
        rounds=rounds,
    )


def _interval(result: Comparison) -> tuple[float, float]:
    """The interval of the ratio; the extremes where the samples are too few for a bootstrap."""
    if result.count < FEW:
        return result.least, result.extremes
    return result.quantile(INTERVAL_ALPHA / 2), result.quantile(1 - INTERVAL_ALPHA / 2)


def _samples(default: Candidate, rival: Candidate) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """The samples that ``compare`` compares, default first, and how many each round has."""
    keys = sorted(default.rounds.keys() & rival.rounds.keys())
    if not keys:
        shared = shared_run(default, rival)
        left, right = (one.samples(one.newest_run if shared is None else shared) for one in (default, rival))
        return left, right, (max(len(left), len(right)),)
    pairs = [list(zip(default.rounds[key], rival.rounds[key], strict=False)) for key in keys]
    flat = [pair for several in pairs for pair in several]
    return tuple(a for a, _ in flat), tuple(b for _, b in flat), tuple(len(several) for several in pairs)
