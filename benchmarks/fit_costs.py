"""Fit the figures that untuned choices on Hopper are made by, and say how well they choose.

    python benchmarks/fit_costs.py --out attn_tune/kernels/flash_attention/costs_sm_90.json
    python benchmarks/fit_costs.py --folds 6 --by model

Reads the races of ``benchmarks/unseen_shapes.py configs`` (``unseen_configs.jsonl`` in ``results/h200`` and
``results/h100``) and fits the model of ``attn_tune/kernels/flash_attention/costs.py`` to them (``cost_fit.py``). With
``--folds`` it says what choosing by figures that were fitted without a race loses in that race; with ``--by model``
they were fitted without any race of its head counts and head dim. Beside each stands what is lost where less than half
a microsecond counts as nothing, and what no model can save: the fastest config of the menu over the fastest that was
raced. Needs Triton, no GPU.
"""

import argparse
import collections
import dataclasses
import json
import math
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from cost_fit import LAUNCHES, Fit, Time
from cost_menu import KNOBS, MENU, TILE, width_of
from untuned_regret import Side, ref_of

from attn_tune.devices.identity import device_from_kind
from attn_tune.kernels.flash_attention import costs
from attn_tune.kernels.flash_attention.costs import Launch
from attn_tune.kernels.flash_attention.triton_split.limits import packed_rows
from attn_tune.kernels.flash_attention.triton_split.space import untuned
from attn_tune.ops.contract import load
from attn_tune.ops.flash_attention.problem import Problem
from attn_tune.ops.registry import get_op
from attn_tune.schema.config import config_to_dict
from attn_tune.schema.device import Device
from attn_tune.tuner.work.compile import lower_config

OP = get_op("flash_attention")
H200, H100 = (device_from_kind(kind) for kind in ("nvidia-h200", "nvidia-h100-sxm5"))
RESULTS = Path(__file__).parent / "results"
# Races of whole calls of drawn problems, by device; and exhaustive searches of lone launches of large ones (H200).
RACES = tuple(RESULTS / device / "unseen_configs.jsonl" for device in ("h200", "h100"))
SEARCHES = RESULTS / "h200/searches.jsonl"
# Of `triton_hopper`, which holds one block: as many as there are multiprocessors run. cuDNN does not say.
ONE = ("triton_hopper", "cudnn")
# Registers and shared memory of a multiprocessor of Hopper.
REGISTERS, SHARED_BYTES, BLOCK_BYTES = 65536, 228 * 1024, 1024
# Rows that share keys up to which `triton_split` chooses by a model of its own.
FEW_ROWS = 32
# What a sweep takes for a tie.
TIE_US = 0.5


class Race(NamedTuple):
    """One race of the configs of a problem: each kernel, the values of its knobs, and microseconds."""

    number: int
    device: Device
    problem: Problem
    direction: str
    times: list[tuple[str, list[Any], float]]


def races(paths: Sequence[Path]) -> Iterator[Race]:
    """Each race that the model is for. Those of an H100 are in a folder of that name."""
    lines = ((path, line) for path in paths for line in path.open())
    for number, (path, line) in enumerate(lines):
        race = json.loads(line)
        problem = OP.from_signature(OP.parse_signature(race["signature"]))
        if costs.modelled(problem):
            device = H100 if path.parent.name == "h100" else H200
            yield Race(number, device, problem, race["direction"], race["times"])


def times_of(paths: Sequence[Path], direction: str, kernel: str) -> list[Time]:
    """The times of the configs of ``MENU``."""
    found = []
    for race in races(paths):
        if race.direction != direction or (direction == "fwd" and costs.has_few_queries(race.problem)):
            continue
        best = min((us for name, _, us in race.times if name in LAUNCHES[direction]), default=math.inf)
        for name, values, us in race.times:
            launches = launches_of(name, direction, race.problem, values) if name == kernel else None
            if launches is not None:
                found.append(Time(race.number, race.device, race.problem, launches, us, best))
    return found


def lone_times_of(direction: str, kernel: str) -> list[Time]:
    """The times of ``SEARCHES``, whose races have numbers below zero."""
    found = []
    for number, text in enumerate(SEARCHES.open()):
        search = json.loads(text)
        name = f"{search['kernel'].rpartition('/')[2]}/{search['part'] or 'fwd'}"
        if name not in [f"{kernel}/{part}" for part in LAUNCHES[direction][kernel]]:
            continue
        problem = OP.from_signature(OP.parse_signature(search["signature"]))
        bound = width_of(problem)
        times = {}
        for *values, ns in search["rows"]:
            knobs = dict(zip(search["knobs"], values, strict=True))
            if ns is None:
                # It did not run.
                continue
            fields = KNOBS.get(kernel, TILE)
            times[tuple(int(knobs[f]) for f in fields if knobs.get(f) is not None)] = ns / 1e3
        best = min(times.values())
        found += [
            Time(-1 - number, H200, problem, (Launch(name, knobs),), us, best, is_call=False)
            for knobs, us in times.items()
            if knobs in MENU[name][bound]
        ]
    return found


def launches_of(kernel: str, direction: str, problem: Problem, values: Sequence[Any]) -> tuple[Launch, ...] | None:
    """The launches of a recorded config; None where one is not in ``MENU``."""
    splits, knobs = 1, [tuple(values)]
    if kernel == "triton_hopper":
        # Every soft cap goes through the fast tanh; sections matter little.
        if bool(values[5]) != (problem.soft_cap is not None):
            return None
        knobs = [(values[0], values[1], int(values[4]))]
    elif kernel == "triton_split":
        splits, knobs = values[4], [tuple(values[:4])]
    elif direction == "bwd" and kernel == "triton":
        knobs = [tuple(v) for v in values]
    parts = LAUNCHES[direction][kernel]
    launches = tuple(Launch(f"{kernel}/{part}", k, splits) for part, k in zip(parts, knobs, strict=True))
    bound = width_of(problem)
    return launches if all(launch.knobs in MENU[launch.name][bound] for launch in launches) else None


def residents() -> dict[tuple[str, int, tuple[int, ...]], int]:
    """Blocks that one multiprocessor holds of each config, by what Triton compiles for a causal problem."""
    return {
        (name, width, knobs): 1 if name.partition("/")[0] in ONE else _resident(name, width, knobs)
        for name, by_width in MENU.items()
        for width, menu in by_width.items()
        for knobs in menu
    }


def _resident(name: str, width: int, knobs: tuple[int, ...]) -> int:
    kernel, _, part = name.partition("/")
    direction = "fwd" if part == "fwd" else "bwd"
    # `triton_split` is for few rows.
    batch, rows = (1, 64) if kernel == "triton_split" else (4, 1024)
    text = f"flash_attention/v1 b={batch} t={rows} s=1024 n=8 k=2 h={width} v={width} dtype=bfloat16 causal=1"
    tile = dict(zip(TILE, knobs, strict=False))
    config: dict[str, Any] = {**tile, "num_splits": 1} if kernel == "triton_split" else tile
    if part != "fwd":
        small = {"block_q": 32, "block_k": 32, "num_warps": 4, "num_stages": 2}
        config = {"dq": small, "dkv": small} | {part: tile}
    ref = ref_of(text, direction, Side(kernel, config))
    if part != "fwd":
        ref = dataclasses.replace(ref, part=part)
    problem = OP.from_signature(ref.signature)
    inputs = jax.eval_shape(lambda: load(OP.inputs)(problem, direction, 0))
    resources = lower_config(ref, inputs, 90).resources
    registers = -(-resources.registers // 8) * 8 * 32 * knobs[2]
    return max(1, min(SHARED_BYTES // (resources.shared_bytes + BLOCK_BYTES), REGISTERS // registers))


def ruled(paths: Sequence[Path]) -> dict[int, tuple[float, float]]:
    """By race what a forward of ``triton_split`` should take and took, where not the figures choose its config.

    That of few rows that share keys, for which ``triton_split`` has a model of its own, is in no menu.
    """
    found = {}
    for race in races(paths):
        problem, is_forward = race.problem, race.direction == "fwd"
        if is_forward and not costs.has_few_queries(problem) and packed_rows(problem) <= FEW_ROWS:
            expected, config = untuned(problem, race.device)
            values = [value for value in config_to_dict(config).values() if value is not None]
            raced = [us for name, knobs, us in race.times if name == "triton_split" and knobs == values]
            if raced:
                found[race.number] = expected, raced[0]
    return found


def losses(
    fit: Fit, predicted: np.ndarray, rules: Mapping[int, tuple[float, float]], tie_us: float = 0.0
) -> dict[int, float]:
    """By race the time of the config that should be fastest over that of the fastest; 1 within ``tie_us``.

    ``rules``: what ``ruled`` says.
    """
    sides: dict[int, list[tuple[float, float]]] = collections.defaultdict(list)
    best: dict[int, float] = {}
    for time, expected in zip(fit.times, predicted, strict=True):
        if not time.is_call:
            continue
        sides[time.race].append((expected, time.us))
        best[time.race] = time.best
    found = {}
    for race, pairs in sides.items():
        pairs += [rules[race]] if race in rules else []
        least = min(expected for expected, _ in pairs)
        # Configs that the model does not tell apart.
        chosen = statistics.median(us for expected, us in pairs if expected <= least * 1.0001)
        found[race] = chosen / best[race] if chosen - best[race] > tie_us else 1.0
    return found


def lines(what: str, fit: Fit, predicted: np.ndarray, rules: Mapping[int, tuple[float, float]]) -> str:
    """Geometric mean and worst of the losses, and the same where ties count as nothing."""
    found = []
    for tied, tie_us in (("", 0.0), (", ties", TIE_US)):
        values = list(losses(fit, predicted, rules, tie_us).values())
        found.append(
            f"{what}{tied}: {len(values)} races, geometric mean {statistics.geometric_mean(values):.4f}, worst "
            f"{max(values):.2f}, above 1.1 {sum(v > 1.1 for v in values)}"
        )
    return "\n".join(found)


def held_out(times: Sequence[Time], folds: int, by: str) -> dict[int, int]:
    """The fold that each race is left out of; searches of lone launches are in every fit."""
    problems = {time.race: time.problem for time in times if time.is_call}
    if by == "race":
        return {race: race % folds for race in problems}
    models = sorted({_model(problem) for problem in problems.values()})
    drawn = np.random.default_rng(0).permutation(len(models))
    fold_of = {models[index]: place % folds for place, index in enumerate(drawn)}
    return {race: fold_of[_model(problem)] for race, problem in problems.items()}


def _model(problem: Problem) -> tuple[int, ...]:
    return problem.num_q_heads, problem.num_kv_heads, problem.head_dim


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--races", type=Path, nargs="+", default=RACES)
    parser.add_argument("--out", type=Path, help="the figures, as JSON")
    parser.add_argument("--folds", type=int, default=0, help="fit without each part of the races in turn")
    parser.add_argument("--by", choices=("race", "model"), default="race", help="what a part leaves out whole")
    args = parser.parse_args()
    resident = residents()
    launches: dict[str, Any] = {}
    calls: dict[str, Any] = {}
    for direction, kernels in LAUNCHES.items():
        rules = ruled(args.races) if direction == "fwd" else {}
        times = {k: times_of(args.races, direction, k) + lone_times_of(direction, k) for k in kernels}
        fit = Fit(direction, times, resident)
        x = fit.fit(np.ones(len(fit.us)))
        of_launches, of_calls = fit.figures(x)
        launches |= of_launches
        calls |= of_calls
        error = np.abs(np.log(fit.predict(x, raced=True) / fit.us))
        for i, kernel in enumerate(kernels):
            near = error[(fit.kernel == i) & (fit.weight >= 1)]
            print(f"{kernel} {direction}: {len(times[kernel])} times, median error {np.median(near):.3f}")
        print(lines(f"{direction}, the menu", fit, fit.us, {race: (us, us) for race, (_, us) in rules.items()}))
        print(lines(f"{direction}, chosen", fit, fit.predict(x), rules))
        if not args.folds:
            continue
        fold_of = held_out(fit.times, args.folds, args.by)
        folds = np.array([fold_of.get(race, -1) for race in fit.race])
        predicted = np.zeros(len(fit.us))
        for fold in range(args.folds):
            out = folds == fold
            predicted[out] = fit.predict(fit.fit(~out))[out]
        print(lines(f"{direction}, left out by {args.by}", fit, predicted, rules))
    if args.out:
        args.out.write_text(json.dumps({"launches": launches, "kernels": calls}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
