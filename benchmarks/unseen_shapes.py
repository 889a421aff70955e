"""Measure the loss of auto on shapes that are in no pack, beside the best config that a sweep of each finds.

    python benchmarks/unseen_shapes.py grid --seed 7 --out unseen.toml
    attn-tune sweep --grid unseen.toml --db unseen.db --devices all
    python benchmarks/unseen_shapes.py race unseen.toml --db unseen.db --out unseen.json

``grid`` draws problems by a seed: head counts and head dims of public models, lengths from 1 to 32k that are mostly no
round numbers, and features. ``race`` takes, for each problem and direction, the config that auto takes from the packs
that are active and the winner of the sweep, and times both in one race with a cold cache. ``untuned`` races the untuned
config of every kernel instead: it says which kernel an untuned call should prefer. ``configs`` races some configs of
every kernel besides, those of the shipped packs as a lookup would adapt them and some drawn by chance: most of what a
sweep says, in a twentieth of its time; with ``--menu`` those that ``fit_costs.py`` tells apart, and splits and sections
beside the untuned ones, and with ``--drawn`` the others too. All need the GPU in question. ``prepare``, which does not,
compiles the Triton kernels of ``configs`` into Triton's cache; several processes, each with a ``--shard``, do so in
parallel:

    for i in 0 1 2 3; do
        ATTN_TUNE_DEVICE_AS=nvidia-h200 JAX_PLATFORMS=cpu \\
            python benchmarks/unseen_shapes.py prepare unseen.toml --shard $i/4 &
    done
"""

import argparse
import functools
import json
import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from flash_attention_peers import parse_shard, shard
from unseen_grid import to_toml
from unseen_rivals import all_rivals, config_rivals, menu_rivals, swept_rivals, untuned_rivals
from untuned_regret import build, race_sides, ref_of

from attn_tune.schema.errors import AttnTuneError


def raced_by(args: argparse.Namespace) -> Any:
    """The function that finds the sides of ``configs`` and ``prepare``."""
    if not args.menu:
        return functools.partial(config_rivals, drawn=args.drawn)
    return functools.partial(all_rivals, drawn=args.drawn) if args.drawn else menu_rivals


def prepare(args: argparse.Namespace) -> int:
    """Lower the Triton configs that ``configs`` races; how many could not be."""
    import jax

    from attn_tune.devices.identity import current_device
    from attn_tune.ops.contract import load
    from attn_tune.ops.registry import get_op
    from attn_tune.tuner.work.compile import lower_config

    op, capability, failed = get_op("flash_attention"), current_device().compute_capability or 0, 0
    jobs = []
    for _, signature, direction in asked(args.grid):
        sides = raced_by(args)(signature, direction).values()
        jobs += [(signature, direction, side) for side in {repr(s): s for s in sides}.values()]
    for signature, direction, side in shard(jobs, *args.shard):
        if not side.kernel.startswith("triton"):
            continue
        ref = ref_of(signature, direction, side)
        problem = op.from_signature(ref.signature)
        inputs = jax.eval_shape(lambda p=problem, d=direction: load(op.inputs)(p, d, 0))
        try:
            lower_config(ref, inputs, capability)
        except AttnTuneError as error:
            failed += 1
            print(f"{side.kernel} {side.config}: {error}", file=sys.stderr)
    return failed


def asked(grid: Path) -> list[tuple[str, str, str]]:
    """Name, signature and direction of each race."""
    from attn_tune.tuner.plan.grid import load_grid

    return [
        (point.name, point.signature.text, direction)
        for point in load_grid(str(grid)).points
        for direction in point.directions or ("fwd", "bwd")
    ]


def measure(args: argparse.Namespace, rivals: Any) -> list[dict[str, Any]]:
    """One row for each problem and direction of the grid: the rivals, and microseconds of each."""
    rows: list[dict[str, Any]] = []
    with ThreadPoolExecutor(args.threads) as pool:
        jobs = []
        for name, signature, direction in shard(asked(args.grid), *args.shard):
            try:
                found = rivals(signature, direction)
            except LookupError as error:
                print(f"{name} {direction}: {error}", file=sys.stderr)
                continue
            distinct = list({repr(side): side for side in found.values()}.values())
            calls = [pool.submit(build, signature, direction, side) for side in distinct]
            jobs.append((name, signature, direction, found, distinct, calls))
        for name, signature, direction, found, distinct, calls in jobs:
            times = race_sides(signature, direction, calls, args.rounds)
            by_side = {repr(s): ns / 1e3 for s, ns in zip(distinct, times, strict=True)}
            row = {"point": name, "signature": signature, "direction": direction}
            row["us"] = {label: by_side[repr(side)] for label, side in found.items()}
            row["sides"] = {label: side._asdict() for label, side in found.items()}
            rows.append(row)
            print(line(row), flush=True)
            if args.out:
                args.out.write_text(json.dumps(rows, indent=1) + "\n")
    return rows


def line(row: Mapping[str, Any]) -> str:
    """Auto over the fastest rival, then every time in microseconds."""
    best = min((label for label in row["us"] if label != "auto"), key=row["us"].__getitem__)
    shown = [label for label in row["us"] if " " not in label or label == best]
    times = "  ".join(f"{label} {row['us'][label]:.1f}" for label in shown)
    kernel = row["sides"]["auto"]["kernel"]
    return f"{loss(row):6.3f}  {row['point']} {row['direction']}  {kernel}  {times}"


def loss(row: Mapping[str, Any]) -> float:
    """Auto's time over that of the fastest rival; infinite where auto did not run."""
    return row["us"]["auto"] / min((us for label, us in row["us"].items() if label != "auto"))


def record(rows: Sequence[Mapping[str, Any]], into: Path) -> None:
    """Writes races of ``configs`` as lines of ``into``, in the place of older ones of the same problem."""
    found = {}
    for line in into.read_text().splitlines() if into.exists() else ():
        race = json.loads(line)
        found[race["signature"], race["direction"]] = line
    for row in rows:
        sides = {repr(side): (side, row["us"][label]) for label, side in row["sides"].items()}
        times = [
            [side["kernel"], _values(side["config"]), round(us, 2)] for side, us in sides.values() if math.isfinite(us)
        ]
        race = {"signature": row["signature"], "direction": row["direction"], "times": times}
        found[row["signature"], row["direction"]] = json.dumps(race, separators=(",", ":"))
    into.write_text("\n".join(found.values()) + "\n")


def _values(config: Mapping[str, Any]) -> list[Any]:
    """The values of the knobs, without those that are None."""
    values = (_values(v) if isinstance(v, Mapping) else v for v in config.values())
    return [value for value in values if value is not None]


def summarise(rows: Sequence[Mapping[str, Any]]) -> None:
    """Geometric mean and worst loss, by direction and for all."""
    for direction in ("fwd", "bwd", ""):
        losses = [loss(row) for row in rows if row["direction"] == direction or not direction]
        if losses:
            print(
                f"{direction or 'all':4s} {len(losses):3d} races: auto over the best: geometric mean "
                f"{statistics.geometric_mean(losses):.3f}, worst {max(losses):.3f}"
            )


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    grid = commands.add_parser("grid", help="write the grid file of a seed")
    grid.add_argument("--seed", type=int, required=True)
    grid.add_argument("--count", type=int, default=24)
    grid.add_argument("--out", type=Path, help="default: standard output")
    texts = {
        "race": "auto beside a sweep's winners",
        "untuned": "every kernel",
        "configs": "some configs of every kernel",
        "prepare": "compile what 'configs' races",
    }
    for command, text in texts.items():
        timed = commands.add_parser(command, help=text)
        timed.add_argument("grid", type=Path)
        timed.add_argument("--out", type=Path)
        timed.add_argument("--shard", type=parse_shard, default=(0, 1), help="as in 0/2")
        timed.add_argument("--rounds", type=int, default=12)
        timed.add_argument("--threads", type=int, default=8, help="compilations at a time")
        if command == "race":
            timed.add_argument("--db", type=Path, required=True, help="the sweep's database")
        if command in ("configs", "prepare"):
            timed.add_argument("--drawn", type=int, help="of each part, by chance (default: 5, with --menu none)")
            timed.add_argument("--menu", action="store_true", help="those of fit_costs.py besides")
    joined = commands.add_parser("join", help="summarise files made before; nothing is run")
    joined.add_argument("files", type=Path, nargs="+")
    recorded = commands.add_parser("record", help="add races of 'configs' to a file of fit_costs.py")
    recorded.add_argument("files", type=Path, nargs="+")
    recorded.add_argument("--into", type=Path, required=True)
    args = parser.parse_args()
    if "drawn" in args and args.drawn is None:
        args.drawn = 0 if args.menu else 5
    if args.command == "record":
        record([row for path in args.files for row in json.loads(path.read_text())], args.into)
        return 0
    if args.command == "grid":
        text = to_toml(args.seed, args.count)
        args.out.write_text(text) if args.out else print(text, end="")
        return 0
    if args.command == "join":
        rows = [row for path in args.files for row in json.loads(path.read_text())]
        for row in sorted(rows, key=loss, reverse=True):
            print(line(row))
    elif args.command == "untuned":
        rows = measure(args, untuned_rivals)
    elif args.command == "prepare":
        return 1 if prepare(args) else 0
    elif args.command == "configs":
        rows = measure(args, raced_by(args))
    else:
        from attn_tune.db import Database

        with Database.open(args.db, read_only=True) as database:
            rows = measure(args, functools.partial(swept_rivals, database))
    summarise(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
