"""Regret of each search strategy by number of trials, replayed on a recorded exhaustive sweep.

Leave one shape out: a strategy searches each shape with all others as its prior. No device is needed.

    python benchmarks/replay_regret.py lab.db --out replay
    python benchmarks/replay_regret.py benchmarks/results/h200/searches.jsonl
    python benchmarks/replay_regret.py benchmarks/results/h200/searches.jsonl --hints winners

``--hints`` says what is known of the other shapes: every time, as in a lab database; the winners only, as in a pack,
which is what a sweep into an empty database starts from; or nothing.
"""

import argparse
import dataclasses
import json
import math
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from searches import SUFFIX, read_searches, write_searches

from attn_tune.db import Database, PastSearch
from attn_tune.ops.registry import get_op
from attn_tune.reports.tables import markdown_table
from attn_tune.tuner.plan.replay import (
    Hints,
    RecordedCase,
    RegretCurve,
    leave_one_shape_out,
    quantile,
)
from attn_tune.tuner.plan.strategies.effort import STRATEGIES, StrategyName

SHARES = (0.05, 0.10, 0.15, 0.30)
SEEDS = 20
LEAST_CONFIGS = 8


def read_cases(path: Path, *, kernel: str | None, device: str | None) -> list[RecordedCase]:
    """Reads one device's searches from a database, in the newest environment of each part of a case.

    Leaves out parts with few configs, which cannot stand for a search, and directions combined from parts that were
    searched apart.
    """
    with Database.open(path, read_only=True) as database:
        found = database.past_searches(kernel=kernel)
    devices = sorted({past.device for past in found})
    chosen = next((d for d in devices if d.startswith(device or "")), None)
    if chosen is None:
        sys.exit(f"{path} has no trials of that kernel and device; its devices are {devices}")
    if device is None and len(devices) > 1:
        sys.exit(f"{path} has trials of several devices, choose one with --device: {devices}")
    newest: dict[tuple, PastSearch] = {}
    for past in found:
        if past.device == chosen:
            newest[past.kernel, past.direction, past.part, past.signature] = past
    cases = [_case(past) for past in newest.values()]
    in_parts = {(case.kernel, case.direction) for case in cases if case.part}
    return [
        case
        for case in cases
        if len(case.times) >= LEAST_CONFIGS and (case.part or (case.kernel, case.direction) not in in_parts)
    ]


def _case(past: PastSearch) -> RecordedCase:
    return RecordedCase(
        kernel=past.kernel,
        direction=past.direction,
        part=past.part,
        signature=past.signature,
        candidates=tuple(past.configs.values()),
        times={d: ns for d, ns in past.times_ns.items() if math.isfinite(ns)},
        fields=get_op(past.signature.op).fields,
    )


def replay_all(
    cases: Sequence[RecordedCase],
    names: Iterable[StrategyName],
    *,
    seeds: int = SEEDS,
    hints: Hints = Hints.TIMES,
) -> dict[tuple[str, str], list[RegretCurve]]:
    """Curves by ``(strategy, series)``. Chance is replayed with ``seeds`` seeds; the others need one."""
    curves = defaultdict(list)
    for name in names:
        started = time.monotonic()
        for seed in range(seeds if name is StrategyName.RANDOM else 1):
            for curve in leave_one_shape_out(STRATEGIES[name], cases, share=max(SHARES), seed=str(seed), hints=hints):
                curves[str(name), label(curve.case)].append(curve)
        print(f"{name}: {time.monotonic() - started:.1f} s", file=sys.stderr)
    return dict(curves)


def label(case: RecordedCase) -> str:
    """Kernel, direction and part as a row's name."""
    return f"{case.kernel} {case.direction} {case.part}".strip()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """Regrets of one strategy on one series, at one share of the evaluations; 0.01 is 1 % slower than the best."""

    strategy: str
    series: str
    shapes: int
    configs: int
    share: float
    median: float
    p95: float


def summarise(curves: dict[tuple[str, str], list[RegretCurve]]) -> list[Row]:
    """One row a strategy, series and share."""
    return [
        Row(
            strategy=strategy,
            series=series,
            shapes=len({curve.case.signature for curve in found}),
            configs=max(len(curve.case.candidates) for curve in found),
            share=share,
            median=quantile([curve.at(share) for curve in found], 0.5),
            p95=quantile([curve.at(share) for curve in found], 0.95),
        )
        for (strategy, series), found in curves.items()
        for share in SHARES
    ]


def to_markdown(rows: Sequence[Row]) -> str:
    """One line a strategy and series: median / p95 regret at each share."""
    lines: dict[tuple, list[str]] = {}
    for row in rows:
        key = (row.strategy, row.series, str(row.shapes), str(row.configs))
        lines.setdefault(key, []).append(f"{_percent(row.median)} / {_percent(row.p95)}")
    head = ["strategy", "kernel, direction, part", "shapes", "configs"]
    shares = [f"{share:.0%} of evaluations" for share in SHARES]
    return markdown_table([*head, *shares], [[*key, *cells] for key, cells in lines.items()])


def _percent(regret: float) -> str:
    return f"{100 * regret:.2f} %" if math.isfinite(regret) else "none right"


def plot(curves: dict[tuple[str, str], list[RegretCurve]], path: Path) -> None:
    """One panel a series: median regret (line) and p95 (dashed) over the share of evaluations."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    series = list(dict.fromkeys(key[1] for key in curves))
    figure, panels = plt.subplots(1, len(series), figsize=(5 * len(series), 4), squeeze=False)
    shares = [0.01 * step for step in range(1, round(100 * max(SHARES)) + 1)]
    for panel, name in zip(panels[0], series, strict=True):
        for colour, (strategy, found) in enumerate((s, found) for (s, of), found in curves.items() if of == name):
            for part, style in ((0.5, "-"), (0.95, "--")):
                values = [100 * quantile([c.at(s) for c in found], part) for s in shares]
                label = strategy if part == 0.5 else None
                panel.plot(shares, values, style, color=f"C{colour}", label=label)
        panel.set(title=name, xlabel="share of the space evaluated", yscale="symlog")
        panel.axhline(1, color="grey", linewidth=0.5)
    panels[0][0].set_ylabel("regret, % (line: median, dashed: p95)")
    panels[0][0].legend()
    figure.tight_layout()
    figure.savefig(path)


def main() -> None:
    """Reads the database, replays, prints the table and writes ``DIR/replay.json`` and ``DIR/replay.svg``."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recorded", type=Path, help="a lab database with an exhaustive sweep, or its searches.jsonl")
    parser.add_argument("--out", type=Path, metavar="DIR", help="write JSON and a plot there")
    parser.add_argument("--save", type=Path, metavar="FILE", help="write searches.jsonl and end")
    parser.add_argument("--kernel", metavar="OP/NAME", help="only this kernel")
    parser.add_argument("--device", metavar="DIGEST", help="how the device's digest begins")
    parser.add_argument("--strategy", action="append", choices=[str(n) for n in StrategyName], help="repeatable")
    parser.add_argument("--hints", choices=[str(h) for h in Hints], default=str(Hints.TIMES))
    parser.add_argument("--seeds", type=int, default=SEEDS, help="replays of 'random'")
    arguments = parser.parse_args()
    started = time.monotonic()
    if arguments.recorded.suffix == SUFFIX:
        cases = read_searches(arguments.recorded)
    else:
        cases = read_cases(arguments.recorded, kernel=arguments.kernel, device=arguments.device)
    print(f"{len(cases)} cases read in {time.monotonic() - started:.2f} s", file=sys.stderr)
    if arguments.save:
        write_searches(cases, arguments.save)
        return
    names = [StrategyName(name) for name in arguments.strategy or StrategyName]
    curves = replay_all(cases, names, seeds=arguments.seeds, hints=Hints(arguments.hints))
    rows = summarise(curves)
    print(to_markdown(rows))
    if arguments.out is None:
        return
    arguments.out.mkdir(parents=True, exist_ok=True)
    data = {
        "rows": [dataclasses.asdict(row) for row in rows],
        "curves": [
            {
                "strategy": strategy,
                "series": series,
                "signature": curve.case.signature.text,
                "configs": len(curve.case.candidates),
                "regrets": [r if math.isfinite(r) else None for r in curve.regrets],
            }
            for (strategy, series), found in curves.items()
            for curve in found
        ],
    }
    (arguments.out / "replay.json").write_text(json.dumps(data, indent=1) + "\n")
    try:
        plot(curves, arguments.out / "replay.svg")
    except ModuleNotFoundError as error:
        print(f"no plot: {error}", file=sys.stderr)


if __name__ == "__main__":
    main()
