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
import dataclasses
import functools
import json
import math
import random
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from flash_attention_peers import parse_shard, shard
from untuned_regret import Side, build, race_sides, ref_of

from attn_tune.schema.errors import AttnTuneError

# Query heads, key heads, head dim: published configurations, Hugging Face name beside them.
MODELS: Mapping[str, tuple[int, int, int]] = {
    "openai-community/gpt2": (12, 12, 64),
    "google/vit-huge-patch14": (16, 16, 80),
    "openai/whisper-large-v3": (20, 20, 64),
    "Qwen/Qwen2.5-0.5B": (14, 2, 64),
    "HuggingFaceTB/SmolLM2-135M": (9, 3, 64),
    "meta-llama/Llama-3.2-1B": (32, 8, 64),
    "meta-llama/Llama-3.2-3B": (24, 8, 128),
    "Qwen/Qwen2.5-7B": (28, 4, 128),
    "Qwen/Qwen2.5-14B": (40, 8, 128),
    "microsoft/Phi-3-mini": (32, 32, 96),
    "meta-llama/Llama-2-7B": (32, 32, 128),
    "google/gemma-7b": (16, 16, 256),
    "google/gemma-2-2b": (8, 4, 256),
    "tiiuae/falcon-7b": (71, 1, 64),
    "mistralai/Mistral-Small-24B": (32, 8, 128),
}
# Drawn with equal chance; half of the problems have none.
FEATURES: Mapping[str, Mapping[str, int]] = {
    "window": {"left": 1023},
    "cap": {"cap": 1},
    "sinks": {"sinks": 1},
    "documents": {"seg": 1},
    "padding": {"seg": 1, "len": 1},
}
KINDS = ("train", "encode", "prefill", "decode")
# Tokens of one call, queries and keys: what fits the card with its gradients and references.
MOST_QUERIES, MOST_KEYS = 32_768, 262_144


def draw(seed: int, count: int) -> Iterator[dict[str, Any]]:
    """``count`` layers of a grid file, all different: the kinds of call in turn, everything else by ``seed``."""
    chance, seen = random.Random(seed), set()
    while len(seen) < count:
        kind = KINDS[len(seen) % len(KINDS)]
        model = chance.choice(sorted(MODELS))
        n, k, h = MODELS[model]
        feature = chance.choice(sorted(FEATURES)) if chance.random() < 0.5 else ""
        t, s = _lengths(chance, kind)
        rows = MOST_KEYS // s if kind == "decode" else MOST_QUERIES // s
        batch = max(1, min(rows, 1 << chance.randrange(8)))
        layer = {"b": batch, "t": t, "s": s, "n": n, "k": k, "h": h, "v": h, "dtype": "bfloat16"}
        # With one query a causal mask hides nothing.
        if kind != "encode" and t > 1:
            layer["causal"] = 1
        layer |= FEATURES.get(feature, {})
        name = "-".join(filter(None, (model.rpartition("/")[2].lower(), kind, feature)))
        key = json.dumps(layer, sort_keys=True)
        if key in seen:
            continue
        seen.add(key)
        source = f"https://huggingface.co/{model}"
        name = f"{name}-{batch}x{t}x{s}".replace(".", "_")
        directions = ["fwd"] if kind == "decode" else ["fwd", "bwd"]
        yield {"name": name, "source": source, "directions": directions, **layer}


def _lengths(chance: random.Random, kind: str) -> tuple[int, int]:
    """Queries and keys, uniform in their logarithm."""

    def between(low: int, high: int) -> int:
        length = round(math.exp(chance.uniform(math.log(low), math.log(high))))
        # Some callers pad to a round number, most data does not come so.
        return -(-length // 128) * 128 if length > 128 and chance.random() < 0.4 else length

    if kind == "decode":
        return chance.choice((1, 1, 2, 4, 8)), between(64, 32_768)
    if kind == "prefill":
        keys = between(512, 32_768)
        return min(between(16, 2048), keys), keys
    length = between(32, 4096 if kind == "encode" else 32_768)
    return length, length


def to_toml(seed: int, count: int) -> str:
    """The grid file of ``draw``."""
    summary = f"{count} shapes that no pack was tuned for, drawn with seed {seed}"
    lines = [f'summary = "{summary}"', 'op = "flash_attention"', ""]
    for layer in draw(seed, count):
        lines += [
            "[[layer]]",
            *(f"{key} = {json.dumps(value)}" for key, value in layer.items()),
            "",
        ]
    return "\n".join(lines)


def swept_rivals(database: Any, signature: str, direction: str) -> dict[str, Side]:
    """Auto's choice, and the winner of the sweep.

    Raises:
      LookupError: one of the two is missing.
    """
    from attn_tune.devices.identity import current_device
    from attn_tune.ops.registry import get_op

    op = get_op("flash_attention")
    decision = database.decision(op.parse_signature(signature), direction, current_device())
    if decision is None:
        raise LookupError(f"the sweep has no winner for {direction} of {signature}")
    kernel = decision.kernel.rpartition("/")[2]
    return {"auto": auto(signature, direction), "swept": Side(kernel, decision.config)}


def untuned_rivals(signature: str, direction: str) -> dict[str, Side]:
    """Auto's choice, and the untuned config of every kernel for GPUs that can do the problem."""
    from attn_tune.devices.identity import current_device
    from attn_tune.ops.registry import get_op
    from attn_tune.runtime.lookup.question import Question
    from attn_tune.schema.config import config_to_dict

    question = Question(get_op("flash_attention"), direction, signature, current_device(), None)
    found = {"auto": auto(signature, direction)}
    for spec in question.specs:
        if spec.backend != "xla" and question.refusal_of(spec) is None:
            config = spec.searches[direction].heuristic(question.problem, question.device)
            found[spec.name] = Side(spec.name, config_to_dict(config))
    return found


def config_rivals(signature: str, direction: str, drawn: int) -> dict[str, Side]:
    """The sides of ``untuned_rivals``, and ``drawn`` more configs of each kernel and part, and of the pack."""
    from attn_tune.devices.identity import current_device
    from attn_tune.kernels.registry import get_kernel
    from attn_tune.ops.registry import get_op
    from attn_tune.runtime.lookup.question import Question
    from attn_tune.schema.config import config_from_dict, config_to_dict

    op = get_op("flash_attention")
    question = Question(op, direction, signature, current_device(), None)
    problem, device = question.problem, question.device
    found = untuned_rivals(signature, direction)
    chance = random.Random(f"{signature} {direction}")
    for untuned in list(found.values())[1:]:
        spec = get_kernel(f"flash_attention/{untuned.kernel}")
        if spec.needs_leave(direction):
            # Auto takes it only where a pack says so.
            continue
        search = spec.searches[direction]
        base = config_from_dict(search.config, untuned.config)
        known = [
            search.adapt(
                op.from_signature(op.parse_signature(row.signature)),
                problem,
                device,
                config_from_dict(search.config, row.config),
            )
            for row in _shipped_rows()
            if (row.kernel, row.direction) == (untuned.kernel, direction)
        ]
        known = list(dict.fromkeys(config for config in known if config))
        configs = chance.sample(known, min(drawn, len(known)))
        for part, candidates in search.candidates.items():
            every = list(candidates(problem, device))
            for config in chance.sample(every, min(drawn, len(every))):
                configs.append(search.whole(base, part, config))
        fitting = [c for c in configs if search.infeasible(problem, device, c) is None]
        for config in dict.fromkeys([base, *fitting]):
            side = Side(untuned.kernel, config_to_dict(config))
            if side not in found.values():
                found[f"{untuned.kernel} {len(found)}"] = side
    return found


def menu_rivals(signature: str, direction: str) -> dict[str, Side]:
    """The sides of ``untuned_rivals``, and the configs of each Triton kernel that ``fit_costs.py`` fits figures to."""
    from cost_menu import KNOBS, MENU, TILE, width_of

    from attn_tune.devices.identity import current_device
    from attn_tune.kernels.registry import get_kernel
    from attn_tune.ops.registry import get_op
    from attn_tune.runtime.lookup.question import Question
    from attn_tune.schema.config import config_from_dict, config_to_dict

    question = Question(get_op("flash_attention"), direction, signature, current_device(), None)
    problem, device = question.problem, question.device
    width = width_of(problem)
    found = {
        label: side
        for label, side in untuned_rivals(signature, direction).items()
        if side.kernel in ("cudnn", "triton", "triton_hopper", "triton_split")
    }
    for kernel, untuned in list(found.items())[1:]:
        if kernel == "cudnn":
            continue
        search = get_kernel(f"flash_attention/{kernel}").searches[direction]
        base = config_from_dict(search.config, untuned.config)
        configs = []
        for part in search.parts:
            for knobs in MENU[f"{kernel}/{part or 'fwd'}"][width]:
                names = KNOBS.get(kernel, TILE)
                values = dict(zip(names, knobs, strict=False))
                if "max_registers" in names:
                    values.setdefault("max_registers", None)
                values |= {"ping_pong": bool(knobs[2])} if kernel == "triton_hopper" else {}
                tile = getattr(base, part) if part else base
                values = {name: value for name, value in values.items() if hasattr(tile, name)}
                tile = dataclasses.replace(tile, **values)
                configs.append(search.whole(base, part, tile) if part else tile)
        # Splits and sections of half and twice the number, of the untuned tile.
        near = {"triton_split": "num_splits", "triton_hopper": "heads_per_section"}.get(kernel)
        if near:
            configs += [
                config
                for config in search.candidates[""](problem, device)
                if dataclasses.replace(config, **{near: getattr(base, near)}) == base
            ]
        for config in dict.fromkeys(configs):
            side = Side(kernel, config_to_dict(config))
            if search.infeasible(problem, device, config) is None and side not in found.values():
                found[f"{kernel} {len(found)}"] = side
    return found


def all_rivals(signature: str, direction: str, drawn: int) -> dict[str, Side]:
    """The sides of ``menu_rivals`` and of ``config_rivals``."""
    found = menu_rivals(signature, direction)
    for side in config_rivals(signature, direction, drawn).values():
        if side not in found.values():
            found[f"{side.kernel} {len(found)}"] = side
    return found


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


@functools.cache
def _shipped_rows() -> tuple[Any, ...]:
    from attn_tune.packs.reader import read_pack
    from attn_tune.runtime.active.sources import SHIPPED

    return read_pack(SHIPPED / "nvidia-h200").rows


def auto(signature: str, direction: str) -> Side:
    """The kernel and config of a call of this signature here, with the packs that are active.

    Raises:
      LookupError: nothing can do the problem.
    """
    import attn_tune

    answer = attn_tune.explain("flash_attention", signature, direction).answer
    if answer is None:
        raise LookupError(f"nothing can do {direction} of {signature} here")
    return Side(answer.kernel, answer.config)


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
