"""Fit the figures that untuned choices on Hopper are made by, and say how well they choose.

    python benchmarks/fit_costs.py --out attn_tune/kernels/flash_attention/costs_sm_90.json
    python benchmarks/fit_costs.py --folds 6 --by model

Reads the races of ``benchmarks/unseen_shapes.py configs`` (``results/h200/unseen_configs.jsonl``) and fits the model of
``attn_tune/kernels/flash_attention/costs.py`` to them: least squares of the logarithms, where what is near the fastest
of a race counts most, and what all configs of a race are off by counts little. With ``--folds`` it says what choosing
by figures that were fitted without a race loses in that race; with ``--by model`` they were fitted without any race of
its head counts and head dim. Beside each stands what is lost where less than half a microsecond counts as nothing, and
what no model can save: the fastest config of the menu over the fastest that was raced. Needs scipy and Triton, no GPU.
"""

import argparse
import collections
import dataclasses
import json
import math
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from cost_menu import KNOBS, MENU, TILE, WIDTHS, width_of
from raced_work import raced_work
from scipy.optimize import least_squares
from untuned_regret import Side, ref_of

from attn_tune.kernels.flash_attention import costs
from attn_tune.kernels.flash_attention.costs import FACTS, Launch
from attn_tune.ops.contract import load
from attn_tune.ops.flash_attention.problem import Problem
from attn_tune.ops.registry import get_op
from attn_tune.schema.device import Device
from attn_tune.tuner.work.compile import lower_config

OP = get_op("flash_attention")
H200 = Device(platform="cuda", family="sm_90", variant="nvidia-h200", units=132)
RESULTS = Path(__file__).parent / "results/h200"
# Races of whole calls of drawn problems; and exhaustive searches of lone launches of large ones.
RACES, SEARCHES = RESULTS / "unseen_configs.jsonl", RESULTS / "searches.jsonl"
LAUNCHES = {
    "fwd": {
        "triton": ("fwd",),
        "triton_hopper": ("fwd",),
        "triton_split": ("fwd",),
        "cudnn": ("fwd",),
    },
    "bwd": {"triton": ("dq", "dkv"), "cudnn": ("bwd",)},
}
# Of `triton_hopper`, which holds one block: as many as there are multiprocessors run. cuDNN does not say.
ONE = ("triton_hopper", "cudnn")
# Registers and shared memory of a multiprocessor of Hopper.
REGISTERS, SHARED_BYTES, BLOCK_BYTES = 65536, 228 * 1024, 1024
# A start for each figure, and by what factor (of e) a fit may go from it without a reason.
STARTS = {"tile": (0.5 / 4096, 2.0), "lone": (0.1, 2.0), "start": (0.5, 1.5), "first": (1.5, 1.5)}
CALLS = {"launch": (4.0, 1.0), "ranges": (4.0, 0.7), "sinks": (0.3, 1.0), "lengths": (0.3, 1.0),
         "prepare": (1.0, 0.5), "combine": (1.0, 0.7), "split": (0.05, 0.7)}  # fmt: skip
SPREAD, FACT, TAIL = 0.5, 0.3, (0.5, 0.3)
LONE_WEIGHT = 2.0
# What a sweep takes for a tie.
TIE_US = 0.5


class Time(NamedTuple):
    """One config of a race: its launches, its time and that of the fastest, in microseconds.

    Without ``is_call`` the time is that of one launch, not of the call it is part of.
    """

    race: int
    problem: Problem
    launches: tuple[Launch, ...]
    us: float
    best: float
    is_call: bool = True


def races(path: Path) -> Iterator[tuple[int, Problem, str, list[tuple[str, list[Any], float]]]]:
    """Number, problem, direction and times of each race that the model is for."""
    for number, line in enumerate(path.open()):
        race = json.loads(line)
        problem = OP.from_signature(OP.parse_signature(race["signature"]))
        if costs.modelled(problem):
            yield number, problem, race["direction"], race["times"]


def times_of(path: Path, direction: str, kernel: str) -> list[Time]:
    """The times of the configs of ``MENU``."""
    found = []
    for number, problem, of, times in races(path):
        if of != direction or (of == "fwd" and costs.has_few_queries(problem)):
            continue
        best = min((us for name, _, us in times if name in LAUNCHES[direction]), default=math.inf)
        for name, values, us in times:
            launches = launches_of(name, direction, problem, values) if name == kernel else None
            if launches is not None:
                found.append(Time(number, problem, launches, us, best))
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
            Time(-1 - number, problem, (Launch(name, knobs),), us, best, is_call=False)
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


class Fit:
    """The figures of one kernel and direction, as a vector of logarithms, and the times they are fitted to."""

    def __init__(self, direction: str, kernel: str, times: Sequence[Time], resident: Mapping[Any, int]):
        self.names = tuple(f"{kernel}/{part}" for part in LAUNCHES[direction][kernel])
        self.direction, self.kernel, self.times = direction, kernel, times
        self.us = np.array([t.us for t in times])
        self.race = np.array([t.race for t in times])
        # Few searches of large problems stand beside many races of small ones.
        calls = np.array([float(t.is_call) for t in times])
        self.weight = np.clip(1.5 * np.array([t.best for t in times]) / self.us, 0.15, 1.0)
        self.weight *= np.where(calls > 0, 1.0, LONE_WEIGHT)
        self.slices: dict[tuple[str, str], slice] = {}
        self.start: list[float] = []
        self.give: list[float] = []
        self.configs = {name: [(w, k) for w in WIDTHS for k in MENU[name][w]] for name in self.names}
        for name in self.names:
            n = len(self.configs[name])
            for figure, (value, give) in STARTS.items():
                self._add(name, figure, [math.log(value)] * 3, give)
            for figure in ("tile of", "lone of", "start of", "first of"):
                self._add(name, figure, [0.0] * n, SPREAD)
            self._add(name, "factors", [0.0] * len(FACTS), FACT)
            self._add(name, "tail", [TAIL[0]] * 2, TAIL[1])
            self._add(name, "memory", [0.0], 0.1)
        for figure, (value, give) in CALLS.items():
            self._add("", figure, [math.log(value)], give)
        self.raced = {name: self._columns(name, resident, raced_work) for name in self.names}
        self.expected = {name: self._columns(name, resident, costs.work_of) for name in self.names}
        problems = [t.problem for t in times]
        self.of_call = {
            "prepare": calls * [costs.prepared_us(p) if direction == "bwd" else 0.0 for p in problems],
            "calls": calls,
            "sinks": calls * [p.has_sinks for p in problems],
            "lengths": calls * [p.has_lengths for p in problems],
            "memory": np.array([costs.memory_us(p) if direction == "fwd" else 0.0 for p in problems]),
            "causal": np.array([p.causal for p in problems]),
            "splits": np.array([t.launches[0].splits for t in times], float),
            "parts": np.array([costs.parts_us(t.problem, t.launches[0].splits) for t in times]),
        }

    def _add(self, name: str, figure: str, values: list[float], give: float) -> None:
        self.slices[name, figure] = slice(len(self.start), len(self.start) + len(values))
        self.start += values
        self.give += [give] * len(values)

    def _columns(
        self,
        name: str,
        resident: Mapping[Any, int],
        work_of: Callable[[Launch, Problem], costs.Work],
    ) -> dict[str, np.ndarray]:
        index = {config: i for i, config in enumerate(self.configs[name])}
        rows, facts = [], []
        for time in self.times:
            launch = next((one for one in time.launches if one.name == name), None)
            if launch is None:
                rows.append((0, 0, 0, 0, 0, 1, False, False))
                facts.append((False,) * len(FACTS))
                continue
            width = width_of(time.problem)
            work = work_of(launch, time.problem)
            blocks = resident[name, width, launch.knobs]
            config = index[width, launch.knobs]
            rows.append(
                (
                    config,
                    WIDTHS.index(width),
                    work.programs,
                    work.tiles,
                    work.longest,
                    blocks,
                    work.ranges,
                    True,
                )
            )
            facts.append(work.facts)
        names = ("config", "width", "programs", "tiles", "longest", "resident", "ranges", "runs")
        found = {n: np.array(column) for n, column in zip(names, zip(*rows, strict=True), strict=True)}
        return found | {"facts": np.array(facts, float)}

    def area(self, name: str) -> np.ndarray:
        """The logarithm of rows times keys of each config's tile, and of the head dim."""
        tiles = [costs.tile_of(Launch(name, knobs)) for _, knobs in self.configs[name]]
        return np.array([math.log(q * k * w / 64) for (q, k), (w, _) in zip(tiles, self.configs[name], strict=True)])

    def predict(self, x: np.ndarray, *, raced: bool = False) -> np.ndarray:
        """Microseconds of each time, as a call expects it or of the inputs that were raced."""
        call = {figure: math.exp(x[self.slices["", figure]][0]) for figure in CALLS}
        of = self.of_call
        us = call["launch"] * of["calls"] + sum(call[f] * of[f] for f in ("prepare", "sinks", "lengths"))
        for name in self.names:
            column, value = (
                (self.raced if raced else self.expected)[name],
                lambda figure, name=name: x[self.slices[name, figure]],
            )
            config, width = column["config"], column["width"]
            tile = np.exp(value("tile")[width] + self.area(name)[config] + value("tile of")[config])
            lone = np.exp(value("lone")[width] + 0.5 * self.area(name)[config] + value("lone of")[config])
            factor = np.exp(column["facts"] @ value("factors"))
            rounds = column["programs"] / (H200.units * column["resident"])
            emptiness = np.where(rounds > 1, np.ceil(rounds) / np.maximum(rounds, 1e-9), 1.0)
            emptiness **= np.where(of["causal"], value("tail")[0], value("tail")[1])
            busy = (
                column["programs"] * np.exp(value("start")[width] + value("start of")[config]) + column["tiles"] * tile
            )
            busy = busy / H200.units * emptiness * factor
            longest = (np.exp(value("first")[width] + value("first of")[config]) + column["longest"] * lone) * factor
            memory = np.exp(value("memory")[0]) * of["memory"]
            launch = (busy**4 + longest**4 + memory**4) ** 0.25 + call["ranges"] * column["ranges"]
            us = us + launch * column["runs"]
        combine = call["combine"] + of["splits"] * call["split"] + of["parts"]
        return us + np.where(of["splits"] > 1, combine, 0.0)

    def fit(self, kept: np.ndarray, offsets: Mapping[int, float], x: np.ndarray | None = None) -> np.ndarray:
        """The figures that fit the ``kept`` times, whose races are off by ``offsets``."""
        start, give = np.array(self.start), np.array(self.give)
        off = np.array([offsets.get(race, 0.0) for race in self.race])

        def residuals(x: np.ndarray) -> np.ndarray:
            error = (np.log(self.predict(x, raced=True) / self.us) - off) * self.weight / 0.05
            # Beyond what a logarithm may be a step of the search tells nothing.
            return np.concatenate([np.nan_to_num(error[kept], posinf=1e3), (x - start) / give])

        first = start if x is None else x
        return least_squares(residuals, first, loss="soft_l1", max_nfev=60, x_scale="jac").x

    def figures(self, x: np.ndarray, resident: Mapping[Any, int]) -> tuple[dict[str, Any], dict[str, float]]:
        """The figures that ``costs.py`` reads: of the launches, and of the call."""
        launches = {}
        for name in self.names:
            value = lambda figure, name=name: x[self.slices[name, figure]]  # noqa: E731
            tiles = value("tile of") + self.area(name)
            lones = value("lone of") + 0.5 * self.area(name)
            widths = {}
            for i, width in enumerate(WIDTHS):
                configs = [
                    {
                        "knobs": list(knobs),
                        "resident": resident[name, w, knobs],
                        "start": _short(math.exp(value("start")[i] + value("start of")[j])),
                        "tile": _short(math.exp(value("tile")[i] + tiles[j])),
                        "first": _short(math.exp(value("first")[i] + value("first of")[j])),
                        "lone": _short(math.exp(value("lone")[i] + lones[j])),
                    }
                    for j, (w, knobs) in enumerate(self.configs[name])
                    if w == width
                ]
                widths[str(width)] = configs
            launches[name] = {
                "factors": {f: _short(math.exp(v)) for f, v in zip(FACTS, value("factors"), strict=True)},
                "tail": dict(zip(("causal", "full"), map(_short, value("tail")), strict=True)),
                "memory": _short(math.exp(value("memory")[0])) if self.direction == "fwd" else 0.0,
                "widths": widths,
            }
        call = {figure: _short(math.exp(x[self.slices["", figure]][0])) for figure in CALLS}
        if self.direction == "fwd":
            call["prepare"] = 0.0
        return launches, call


def _short(value: float) -> float:
    return float(f"{value:.3g}")


def fit_together(fits: Sequence[Fit], keep: Callable[[int], bool], rounds: int = 3) -> list[np.ndarray]:
    """The figures of all kernels of a direction.

    Chance decides how long documents are, and more: by what all configs of a race are off no figure moves.
    """
    kept = [np.array([keep(race) for race in fit.race]) for fit in fits]
    found = [fit.fit(k, {}) for fit, k in zip(fits, kept, strict=True)]
    for _ in range(rounds):
        total: dict[int, list[float]] = collections.defaultdict(lambda: [0.0, 1e-9])
        for fit, x in zip(fits, found, strict=True):
            error, weight = np.log(fit.predict(x, raced=True) / fit.us), fit.weight**2
            for race, e, w in zip(fit.race, error, weight, strict=True):
                total[race][0] += w * e
                total[race][1] += w
        offsets = {race: 0.85 * e / w for race, (e, w) in total.items()}
        found = [fit.fit(k, offsets, x) for fit, k, x in zip(fits, kept, found, strict=True)]
    return found


def losses(fits: Sequence[Fit], predicted: Sequence[np.ndarray], tie_us: float = 0.0) -> dict[int, float]:
    """By race the time of the config that should be fastest over that of the fastest; 1 within ``tie_us``."""
    sides: dict[int, list[tuple[float, float]]] = collections.defaultdict(list)
    best: dict[int, float] = {}
    for fit, us in zip(fits, predicted, strict=True):
        for time, expected in zip(fit.times, us, strict=True):
            if not time.is_call:
                continue
            sides[time.race].append((expected, time.us))
            best[time.race] = time.best
    found = {}
    for race, pairs in sides.items():
        least = min(expected for expected, _ in pairs)
        # Configs that the model does not tell apart.
        chosen = statistics.median(us for expected, us in pairs if expected <= least * 1.0001)
        found[race] = chosen / best[race] if chosen - best[race] > tie_us else 1.0
    return found


def lines(what: str, fits: Sequence[Fit], predicted: Sequence[np.ndarray]) -> str:
    """Geometric mean and worst of the losses, and the same where ties count as nothing."""
    found = []
    for tied, tie_us in (("", 0.0), (", ties", TIE_US)):
        values = list(losses(fits, predicted, tie_us).values())
        found.append(
            f"{what}{tied}: {len(values)} races, geometric mean {statistics.geometric_mean(values):.4f}, worst "
            f"{max(values):.2f}, above 1.1 {sum(v > 1.1 for v in values)}"
        )
    return "\n".join(found)


def held_out(fits: Sequence[Fit], folds: int, by: str) -> Mapping[int, int]:
    """The fold that each race is left out of; searches of lone launches are in every fit."""
    problems = {time.race: time.problem for fit in fits for time in fit.times if time.is_call}
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
    parser.add_argument("--races", type=Path, default=RACES)
    parser.add_argument("--out", type=Path, help="the figures, as JSON")
    parser.add_argument("--folds", type=int, default=0, help="fit without each part of the races in turn")
    parser.add_argument("--by", choices=("race", "model"), default="race", help="what a part leaves out whole")
    args = parser.parse_args()
    resident = residents()
    launches: dict[str, Any] = {}
    calls: dict[str, Any] = {}
    for direction, kernels in LAUNCHES.items():
        fits = [
            Fit(
                direction,
                k,
                times_of(args.races, direction, k) + lone_times_of(direction, k),
                resident,
            )
            for k in kernels
        ]
        found = fit_together(fits, lambda race: True)
        for fit, x in zip(fits, found, strict=True):
            of_launches, of_call = fit.figures(x, resident)
            launches |= of_launches
            calls[f"{fit.kernel} {direction}"] = of_call
            error = np.abs(np.log(fit.predict(x, raced=True) / fit.us))[fit.weight >= 1]
            print(f"{fit.kernel} {direction}: {len(fit.us)} times, median error {np.median(error):.3f}")
        print(lines(f"{direction}, the menu", fits, [fit.us for fit in fits]))
        print(lines(f"{direction}, chosen", fits, [fit.predict(x) for fit, x in zip(fits, found, strict=True)]))
        fold_of = held_out(fits, args.folds, args.by) if args.folds else {}
        predicted = [np.zeros(len(fit.us)) for fit in fits]
        for fold in range(args.folds):
            out = [np.array([fold_of.get(race) == fold for race in fit.race]) for fit in fits]
            xs = fit_together(fits, lambda race, fold=fold, of=fold_of: of.get(race) != fold, 2)
            for us, fit, x, mask in zip(predicted, fits, xs, out, strict=True):
                us[mask] = fit.predict(x)[mask]
        if args.folds:
            print(lines(f"{direction}, left out by {args.by}", fits, predicted))
    if args.out:
        args.out.write_text(json.dumps({"launches": launches, "kernels": calls}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
