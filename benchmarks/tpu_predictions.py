"""Ranks the blocks of a published table by prediction, and says where the published winners come.

Usage: python benchmarks/tpu_predictions.py tpu-v6e SCHEDULES.jsonl TABLE.json

The table is tokamax's ``tpu_v6_lite/pallas_mosaic_tpu_flash_attention.json`` (``data/autotuning``), measured on
hardware by its authors: one winner a shape with its time. The schedules are those of ``tpu_schedules.py``. Nothing is
measured here.
"""

import json
import re
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from attn_tune.kernels.flash_attention.problem import Problem
from attn_tune.runtime.devices import device_from_kind
from attn_tune.tuner.predict.model import MODEL, predict
from attn_tune.tuner.predict.schedule import schedule_from_dict

type Blocks = tuple[int, int, int]


@dataclass(frozen=True, kw_only=True)
class Published:
    """One row of the table: the winner's blocks and its median time in milliseconds."""

    problem: Problem
    blocks: Blocks
    ms: float


def read_table(path: Path) -> Iterator[Published]:
    """The rows without residuals and of lengths that whole blocks of 1024 fill."""
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
            problem=Problem(
                **sizes, head_dim=h, v_head_dim=h, causal=spec["mask"]["causal_mask"] is not None
            ),
            blocks=(config["block_q"], config["block_kv"], config["block_kv_compute"]),
            ms=statistics.median(timing["evaluation_times_ms"]),
        )


def read_schedules(path: Path) -> dict[tuple[int, bool], dict[Blocks, list]]:
    """Schedules by (head dim, causal), then by blocks."""
    found: dict[tuple[int, bool], dict[Blocks, list]] = {}
    for line in path.read_text().splitlines():
        row = json.loads(line)
        c = row["config"]
        blocks = (c["block_q"], c["block_kv"], c["block_kv_compute"])
        schedules = [schedule_from_dict(s) for s in row["schedules"]]
        found.setdefault((c["head_dim"], c["causal"]), {})[blocks] = schedules
    return found


def rank(row: Published, schedules: dict[Blocks, list], target: str) -> list[tuple[float, Blocks]]:
    """``(predicted ms, blocks)``, the fastest first."""
    device, ranked = device_from_kind(target), []
    for blocks, found in schedules.items():
        if blocks[0] <= row.problem.q_len and blocks[1] <= row.problem.kv_len:
            config = {"block_q": blocks[0], "block_kv": blocks[1]}
            prediction = predict(found, row.problem, config, device)
            assert prediction is not None
            ranked.append((prediction.ns / 1e6, blocks))
    return sorted(ranked)


def main(target: str, schedules: Path, table: Path) -> None:
    """Prints one line a shape, then the summary."""
    known = read_schedules(schedules)
    print(
        f"model {MODEL!r}, {target}; winner and time as published, rank among the blocks compiled\n"
    )
    print(
        "| T | head dim | mask | winner | published ms | predicted ms | rank | of | tile pair's rank |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    places, pairs, published, predicted = [], [], [], []
    for row in sorted(
        read_table(table), key=lambda r: (r.problem.head_dim, not r.problem.causal, r.problem.q_len)
    ):
        p = row.problem
        ranked = rank(row, known.get((p.head_dim, p.causal), {}), target)
        order = [blocks for _, blocks in ranked]
        if row.blocks not in order:
            continue
        place, ms = order.index(row.blocks) + 1, {b: ms for ms, b in ranked}[row.blocks]
        tiles = list(dict.fromkeys(blocks[:2] for blocks in order))
        pair = tiles.index(row.blocks[:2]) + 1
        places.append((place, len(order)))
        pairs.append((pair, len(tiles)))
        published.append(row.ms)
        predicted.append(ms)
        mask, winner = "causal" if p.causal else "full", "/".join(map(str, row.blocks))
        print(
            f"| {p.q_len} | {p.head_dim} | {mask} | {winner} | {row.ms:.3f} | {ms:.3f} | {place} | {len(order)} "
            f"| {pair} of {len(tiles)} |"
        )
    print(f"\n{len(places)} shapes.")
    for share in (0.01, 0.03, 0.05, 0.10):
        inside = sum(place <= max(1, share * count) for place, count in places)
        print(f"Winner in our top {share:.0%} (the first at least): {inside} of {len(places)}.")
    print(f"Winner in our top 3: {sum(place <= 3 for place, _ in places)} of {len(places)}.")
    print(f"Winner's pair of blocks first: {sum(pair == 1 for pair, _ in pairs)} of {len(pairs)}.")
    ratios = [b / a for a, b in zip(published, predicted, strict=True)]
    low, middle, high = min(ratios), statistics.median(ratios), max(ratios)
    print(f"Predicted over published time: median {middle:.2f}, {low:.2f} to {high:.2f}.")
    rho = statistics.correlation(published, predicted, method="ranked")
    print(f"Spearman correlation of the winners' times over shapes: {rho:.3f}.")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
