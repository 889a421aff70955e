"""Say how exact a model must be for its choices among the menu to lose little.

    python benchmarks/choice_errors.py

Takes the recorded times of the menu (``unseen_configs.jsonl``) for true, gives each a normal error of its logarithm by
a seed, and chooses what then seems fastest: the geometric mean of the chosen over the fastest, and how many sets of 24
races lose at most 1.10. Before that, how much two races of one program differ: configs of ``triton_hopper`` that only
differ in the tanh of a soft cap, where there is none. Needs no GPU.
"""

import argparse
import collections
import itertools
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from fit_costs import LAUNCHES, RACES, launches_of, races

from attn_tune.kernels.flash_attention import costs

ERRORS = (0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.08, 0.1)
SET, WORST, DRAWS = 24, 1.1, 20
# Microseconds that part the times whose differences are shown.
BOUNDS = (0, 20, 50, 200, math.inf)


def menu_times(paths: Sequence[Path], direction: str) -> list[np.ndarray]:
    """Microseconds of the configs of the menu, an array for each race that a model chooses in."""
    found = []
    for race in races(paths):
        if race.direction != direction or (direction == "fwd" and costs.has_few_queries(race.problem)):
            continue
        names = LAUNCHES[direction]
        us = [t for n, values, t in race.times if n in names and launches_of(n, direction, race.problem, values)]
        if us:
            found.append(np.array(us))
    return found


def loss_of_errors(times: list[np.ndarray], error: float, chance: np.random.Generator) -> np.ndarray:
    """The chosen over the fastest of each race, where logarithms are off by ``error``."""
    seeming = (us * np.exp(chance.normal(0, error, us.size)) for us in times)
    return np.array([us[seems.argmin()] / us.min() for us, seems in zip(times, seeming, strict=True)])


def twins(paths: Sequence[Path]) -> list[tuple[float, float]]:
    """Microseconds of a program that a race holds twice, and by how much its logarithms differ."""
    found = []
    for race in races(paths):
        by_program = collections.defaultdict(list)
        for name, values, us in race.times:
            if name == "triton_hopper" and race.problem.soft_cap is None:
                by_program[tuple(values[:5])].append(us)
        found += [(us[0], abs(math.log(us[0] / us[1]))) for us in by_program.values() if len(us) > 1]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--races", type=Path, nargs="+", default=RACES)
    args = parser.parse_args()
    pairs = twins(args.races)
    for low, high in itertools.pairwise(BOUNDS):
        differences = [d for us, d in pairs if low <= us < high]
        if differences:
            print(f"one program twice, {low} to {high} us: {len(differences)}, median {np.median(differences):.4f}")
    for direction in LAUNCHES:
        times, chance = menu_times(args.races, direction), np.random.default_rng(0)
        for error in ERRORS:
            drawn = np.array([chance.permutation(loss_of_errors(times, error, chance)) for _ in range(DRAWS)])
            sets = drawn[:, : drawn.shape[1] // SET * SET].reshape(-1, SET)
            print(
                f"{direction}, {len(times)} races, errors of {error:.2f}: geometric mean "
                f"{math.exp(np.log(drawn).mean()):.4f}, sets with a worst of at most {WORST}: "
                f"{np.mean(sets.max(1) <= WORST):.2f}"
            )


if __name__ == "__main__":
    main()
