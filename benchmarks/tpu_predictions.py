"""Ranks the configs of a published table by prediction, and says where the published winners come.

Usage: python benchmarks/tpu_predictions.py tpu-v6e SCHEDULES.jsonl TABLE.json

The table is tokamax's ``pallas_mosaic_tpu_flash_attention.json`` (``data/autotuning/tpu_v6_lite``, or ``tpu_v5`` for
v5p), measured on hardware by its authors: one winner a shape with its time. The schedules are those of
``tpu_schedules.py``. Nothing is measured here, and no constant of the model is fitted to a table's winners.

A winner whose layouts were not compiled stands for the compiled one that shares its blocks and its scheduler. Blocks of
2048 that were not compiled are filled in from those of 1024 (``fill``), and are marked as such.
"""

import itertools
import json
import re
import statistics
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from attn_tune.devices.identity import device_from_kind
from attn_tune.ops.flash_attention.problem import Problem
from attn_tune.ops.flash_attention.walk import WALK
from attn_tune.tuner.offline.predict.model import MODEL, predict
from attn_tune.tuner.offline.predict.schedule import KernelSchedule, Stretch, schedule_from_dict

# A shape counts only with so many candidates: fewer have no top tenth.
FEWEST = 30


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One config of tokamax's kernel: blocks (queries, keys, keys of a product), layouts, and its scheduler."""

    blocks: tuple[int, int, int]
    layouts: tuple[int, int, int]
    scheduler: bool

    def __str__(self) -> str:
        layouts = "".join(map(str, self.layouts))
        return f"{'/'.join(map(str, self.blocks))} {layouts}{' lp' if self.scheduler else ''}"


@dataclass(frozen=True, kw_only=True)
class Published:
    """One row of the table: the winner and its median time in milliseconds."""

    problem: Problem
    choice: Choice
    ms: float


def read_table(path: Path) -> Iterator[Published]:
    """The rows without residuals, of as many keys as queries and at least 1024 tokens."""
    for key, found in json.loads(path.read_text()).items():
        spec = json.loads(key)
        if not found or spec["return_residuals"] or spec["bias"] or spec["mask"]["bool_mask"]:
            continue
        b, t, n, h = map(int, re.findall(r"\d+", spec["q"].partition("[")[2]))
        s, k = map(int, re.findall(r"\d+", spec["k"].partition("[")[2])[1:3])
        if t < 1024:
            continue
        ((config, timing),) = ((json.loads(c), t) for c, t in found.items())
        sizes = {"batch": b, "q_len": t, "kv_len": s, "num_q_heads": n, "num_kv_heads": k}
        yield Published(
            problem=Problem(**sizes, head_dim=h, v_head_dim=h, causal=spec["mask"]["causal_mask"] is not None),
            choice=Choice(
                blocks=(config["block_q"], config["block_kv"], config["block_kv_compute"]),
                layouts=(config["q_layout"], config["k_layout"], config["v_layout"]),
                scheduler=config["use_experimental_scheduler"],
            ),
            ms=statistics.median(timing["evaluation_times_ms"]),
        )


# By (head dim, causal, whether there is one block only), then by config.
type Known = dict[tuple[int, bool, bool], dict[Choice, KernelSchedule]]


def read_schedules(path: Path) -> Known:
    """Reads the schedules of the configs that compiled."""
    found: Known = {}
    for line in path.read_text().splitlines():
        row = json.loads(line)
        c = row["config"]
        choice = Choice(
            blocks=(c["block_q"], c["block_kv"], c["block_kv_compute"]),
            layouts=tuple(c["layouts"]),
            scheduler=c["scheduler"],
        )
        key = c["head_dim"], c["causal"], c["length"] == c["block_q"] == c["block_kv"]
        for schedule in row.get("schedules", ()):
            found.setdefault(key, {})[choice] = schedule_from_dict(schedule)
    return found


LEAST, BLOCKS = 1024, (1024, 2048)


def fill(known: Known) -> tuple[Known, int, list[float]]:
    """``known`` with the larger blocks that were not compiled, how many these are, and how far off the others would be.

    A larger block's products take as many times the bundles of the smallest one's as they do, on average, where both
    were compiled with the same keys of a product and the same scheduler. The errors are those of leaving each one out.
    """
    ratios: dict[tuple, list[float]] = {}
    for key, found in known.items():
        for choice, schedule in found.items():
            small = found.get(_smallest(choice))
            if small and choice.blocks[:2] != (LEAST, LEAST) and not key[2]:
                ratio = _products(schedule) / _products(small)
                ratios.setdefault((*choice.blocks, choice.scheduler), []).append(ratio)
    filled = {key: dict(found) for key, found in known.items()}
    count = 0
    for key, found in known.items():
        for choice, (q, kv) in itertools.product(found, itertools.product(BLOCKS, repeat=2)):
            larger = replace(choice, blocks=(q, kv, choice.blocks[2]))
            if key[2] or choice.blocks[:2] != (LEAST, LEAST) or larger in filled[key]:
                continue
            filled[key][larger] = _scaled(found[choice], q // LEAST, _ratio(ratios, larger))
            count += 1
    errors = [
        abs(statistics.mean(some[:i] + some[i + 1 :]) / ratio - 1)
        for some in ratios.values()
        if len(some) > 1
        for i, ratio in enumerate(some)
    ]
    return filled, count, errors


def _smallest(choice: Choice) -> Choice:
    return replace(choice, blocks=(LEAST, LEAST, choice.blocks[2]))


def _products(schedule: KernelSchedule) -> int:
    return sum(stretch.bundles for stretch in schedule.stretches if stretch.multiplies)


def _ratio(ratios: dict[tuple, list[float]], choice: Choice) -> float:
    """Without any compiled pair: as many times as there are more rows, or elements."""
    q, kv, compute = choice.blocks
    if same := ratios.get((q, kv, compute, choice.scheduler)):
        return statistics.mean(same)
    wider = ratios.get((LEAST, kv, compute, choice.scheduler)) or [kv / LEAST]
    return q / LEAST * statistics.mean(wider)


def _scaled(schedule: KernelSchedule, rows: int, ratio: float) -> KernelSchedule:
    """Products by ``ratio``; what is done for each block of rows by ``rows``; a step's own bundles stay."""

    def factor(stretch: Stretch) -> float:
        return ratio if stretch.multiplies else rows if stretch.skippable > 1 else 1.0

    stretches = tuple(replace(s, bundles=round(s.bundles * factor(s))) for s in schedule.stretches)
    return replace(schedule, stretches=stretches)


def rank(row: Published, known: Known, target: str) -> dict[Choice, float]:
    """Predicted milliseconds by config, the fastest first."""
    p, device, predicted = row.problem, device_from_kind(target), {}
    several, alone = (known.get((p.head_dim, p.causal, one), {}) for one in (False, True))
    for choice, schedule in several.items():
        q, kv, _ = choice.blocks
        if q <= p.q_len and kv <= p.kv_len:
            if (q, kv) == (p.q_len, p.kv_len):
                schedule = alone.get(choice, schedule)
            steps = p.batch * p.num_q_heads * (p.q_len // q) * (p.kv_len // kv)
            config = {"block_q": q, "block_kv": kv}
            prediction = predict([schedule.with_steps(steps)], WALK, p, config, device)
            assert prediction is not None
            predicted[choice] = prediction.ns / 1e6
    return dict(sorted(predicted.items(), key=lambda item: item[1]))


def stand_in(winner: Choice, compiled: Iterable[Choice]) -> Choice | None:
    """The winner, or where its layouts were not compiled, the first config with its blocks and scheduler."""
    alike = [c for c in compiled if (c.blocks, c.scheduler) == (winner.blocks, winner.scheduler)]
    return winner if winner in alike else next(iter(alike), None)


def main(target: str, schedules: Path, table: Path) -> None:
    """Prints one line a shape, then the summary."""
    known, filled, errors = fill(read_schedules(schedules))
    compiled = sum(map(len, known.values())) - filled
    print(
        f"model {MODEL!r}, {target}; winners and times as published; rank among what was compiled; lost is what the "
        "winner is predicted to lose to the one predicted best\n"
    )
    print("| T | head dim | mask | winner | predicted best | published ms | predicted ms | rank | of | lost |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    places, published, predicted = [], [], []
    for row in sorted(read_table(table), key=lambda r: (r.problem.head_dim, not r.problem.causal, r.problem.q_len)):
        p = row.problem
        ranked = rank(row, known, target)
        winner = stand_in(row.choice, ranked)
        if winner is None:
            continue
        order = list(ranked)
        place, ms = order.index(winner) + 1, ranked[winner]
        places.append((place, len(order)))
        published.append(row.ms)
        predicted.append(ms)
        lost = ms / ranked[order[0]] - 1
        print(
            f"| {p.q_len} | {p.head_dim} | {'causal' if p.causal else 'full'} | {winner} | {order[0]} | {row.ms:.3f} "
            f"| {ms:.3f} | {place} | {len(order)} | {lost:.1%} |"
        )
    print(f"\n{compiled} schedules were compiled, {filled} of larger blocks filled in from smaller ones.")
    if errors:
        middle, worst = statistics.median(errors), max(errors)
        print(f"Filling in what was compiled is off by {middle:.1%} (median), {worst:.1%} (most).")
    print()
    _summary([(place, count) for place, count in places if count >= FEWEST], f"{FEWEST} or more")
    _summary([(place, count) for place, count in places if count < FEWEST], "fewer")
    ratios = [b / a for a, b in zip(published, predicted, strict=True)]
    low, middle, high = min(ratios), statistics.median(ratios), max(ratios)
    print(f"Predicted over published time: median {middle:.2f}, {low:.2f} to {high:.2f}.")
    rho = statistics.correlation(published, predicted, method="ranked")
    print(f"Spearman correlation of the winners' times over shapes: {rho:.3f}.")


def _summary(places: list[tuple[int, int]], which: str) -> None:
    print(f"{len(places)} shapes with {which} candidates.")
    if not places:
        return
    for share in (0.03, 0.05, 0.10):
        inside = sum(place <= max(1, share * count) for place, count in places)
        print(f"Winner in our top {share:.0%} (the first at least): {inside}, {inside / len(places):.0%}.")
    third = sum(place <= 3 for place, _ in places)
    print(f"Winner in our top 3: {third}, {third / len(places):.0%}.\n")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
