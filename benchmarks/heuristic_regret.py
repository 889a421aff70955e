"""Regret of the untuned configs over recorded exhaustive sweeps, and the config that would lose least.

    python benchmarks/heuristic_regret.py nvidia-h200 benchmarks/results/h200/searches.jsonl

Each file is a sweep with one compiler; run it where that compiler is installed, for untuned configs may depend on it. A
group has one kernel, direction, part, widest head and window: a heuristic may choose by these. Regret is the untuned
config's time over the best recorded, minus 1. The least bad config is the one whose worst regret over the group's
shapes and all files is least (minimax, as CLBlast chooses its defaults); configs that some file has not measured take
no part.
"""

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from searches import read_searches

from attn_tune.devices.identity import device_from_kind
from attn_tune.kernels.registry import get_kernel
from attn_tune.ops.registry import get_op
from attn_tune.reports.tables import markdown_table
from attn_tune.schema.config import config_digest, config_to_dict
from attn_tune.tuner.plan.replay import RecordedCase, quantile

# Windows of at most this many keys are searched apart: they fit a few tiles.
NARROW = 512


class Group(NamedTuple):
    """Group of problems that a heuristic may tell from others: kernel, direction, part, widest head, window."""

    kernel: str
    direction: str
    part: str
    width: int
    window: str


class Judged(NamedTuple):
    """One recorded case and its untuned config; regrets are None where it was not measured."""

    case: RecordedCase
    untuned: Mapping[str, Any]
    regret: float | None


def main() -> int:
    """Prints regrets by group, then all together."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("device", help="the recorded device's name, such as nvidia-h200")
    parser.add_argument("recorded", type=Path, nargs="+", help="files of replay_regret.py --save")
    arguments = parser.parse_args()
    groups: dict[Group, list[Judged]] = defaultdict(list)
    for path in arguments.recorded:
        for case in read_searches(path):
            groups[group_of(case)].append(judge(case, arguments.device))
    rows = [row(group, judged) for group, judged in sorted(groups.items())]
    head = ["kernel, direction, part", "head", "window", "cases", "untuned, median", "worst"]
    print(markdown_table([*head, "least bad config", "its worst"], rows))
    every = [judged for found in groups.values() for judged in found]
    print(f"\n{len(every)} cases: {quantiles(j.regret for j in every)}")
    return 0


def group_of(case: RecordedCase) -> Group:
    """The group that a heuristic sees the case in."""
    values = case.signature.values
    left = values.get("left")
    window = "none" if left is None else "narrow" if left < NARROW else "wide"
    return Group(case.kernel, case.direction, case.part, max(values["h"], values["v"]), window)


def judge(case: RecordedCase, device_name: str) -> Judged:
    """The case with the config that its kernel has now when nothing is tuned."""
    device = device_from_kind(device_name)
    spec, op = get_kernel(case.kernel), get_op(case.signature.op)
    whole = spec.searches[case.direction].heuristic(op.from_signature(case.signature), device)
    untuned = config_to_dict(getattr(whole, case.part) if case.part else whole)
    time = case.times.get(config_digest(untuned))
    return Judged(case, untuned, None if time is None else time / case.best_ns - 1)


def least_bad(cases: Sequence[RecordedCase]) -> tuple[Mapping[str, Any], float] | None:
    """The config with the least worst regret over ``cases``, of those that all of them measured."""
    shared = set.intersection(*(set(case.times) for case in cases))
    worst = {digest: max(case.times[digest] / case.best_ns - 1 for case in cases) for digest in shared}
    if not worst:
        return None
    digest = min(worst, key=lambda d: (worst[d], d))
    config = next(c for c in cases[0].candidates if config_digest(c) == digest)
    return config, worst[digest]


def row(group: Group, found: Sequence[Judged]) -> list[str]:
    """One line of the table."""
    best = least_bad([judged.case for judged in found])
    regrets = [j.regret for j in found if j.regret is not None]
    return [
        f"{group.kernel} {group.direction} {group.part}".strip(),
        str(group.width),
        group.window,
        str(len(found)),
        _percent(quantile(regrets, 0.5)) if regrets else "not measured",
        _percent(max(regrets)) if regrets else "not measured",
        " ".join(f"{knob}={value}" for knob, value in best[0].items()) if best else "none",
        _percent(best[1]) if best else "",
    ]


def quantiles(regrets: Iterable[float | None]) -> str:
    """Median, 95th percentile and worst, and how many were not measured."""
    given = list(regrets)
    known = [regret for regret in given if regret is not None]
    if not known:
        return "no untuned config was measured"
    middle, tail = quantile(known, 0.5), quantile(known, 0.95)
    missing = f", {len(given) - len(known)} not measured" if len(known) < len(given) else ""
    return (
        f"the untuned config loses {_percent(middle)} (median), {_percent(tail)} (p95), "
        f"{_percent(max(known))} (worst){missing}"
    )


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


if __name__ == "__main__":
    sys.exit(main())
