"""Makes the packs of TPU generations that are shipped: a sweep that only compiles, and an export of what it predicts.

Usage: python benchmarks/tpu_packs.py FOLDER [TARGET...], with libtpu installed; FOLDER keeps the lab databases, so that
a run that was cut short continues. Without targets it makes all of them. Packs are written to
``attn_tune/packs/shipped``.

Packs are of splash attention, whose forward's predictions were compared with published measurements, and of decoding
over pages, for which none is published; in spite of what else the databases hold. ``--direction fwd`` leaves the
backward out; ``--max-trials`` tries more candidates of attention.
"""

import argparse
import itertools
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from attn_tune.tuner.offline.target import find_target

TARGETS = ("tpu-v4", "tpu-v5e", "tpu-v5p", "tpu-v6e", "tpu-v7x")
# Kernels of all targets by grid, and those of some more.
ATTENTION = {"llama3-8b": ("pallas_tpu_splash", "pallas_tpu_splash_fused")}
# Where a chip has two cores, predictions prefer configs that share them; the library says that those may hang.
DECODING = {target: {"llama3-8b-tpu-serving": ("pallas_tpu_paged",)} for target in ("tpu-v6e", "tpu-v7x")}
PACKS = Path(__file__).parent.parent / "attn_tune" / "packs" / "shipped"


def attn_tune(*arguments: str) -> None:
    """Runs the command line of this checkout.

    Raises:
      CalledProcessError: it failed.
    """
    subprocess.run([sys.executable, "-m", "attn_tune", *arguments], check=True)


def make(target: str, folder: Path, directions: list[str], max_trials: int) -> None:
    """Sweeps ``target`` and writes its pack, named after the device."""
    database = str(folder / f"{target}.db")
    effort = (*_each("--direction", directions), "--max-trials", str(max_trials))
    kernels_of = ATTENTION | DECODING.get(target, {})
    for grid, kernels in kernels_of.items():
        problems = ("--grid", grid, *_each("--kernel", kernels))
        attn_tune("sweep", "--target", target, *problems, *(effort if grid in ATTENTION else ()), "--db", database)
    name = find_target(target).device.variant
    chosen = (*_each("--grid", kernels_of), *_each("--kernel", itertools.chain.from_iterable(kernels_of.values())))
    options = ("--device", name, "--allow-predicted", "--winners", "--overwrite")
    attn_tune("export", str(PACKS / name), "--db", database, "--name", name, *chosen, *options)
    attn_tune("pack", "coverage", str(PACKS / name))


def _each(option: str, values: Iterable[str]) -> list[str]:
    return [argument for value in values for argument in (option, value)]


def main() -> None:
    """All targets that were asked for, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("targets", nargs="*", default=list(TARGETS))
    parser.add_argument("--direction", action="append", choices=("fwd", "bwd"), help="default: both")
    parser.add_argument("--max-trials", type=int, default=4)
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    for target in asked.targets:
        make(target, asked.folder, asked.direction or ["fwd", "bwd"], asked.max_trials)


if __name__ == "__main__":
    main()
