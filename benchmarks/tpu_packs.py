"""Makes the packs of TPU generations that are shipped: a sweep that only compiles, and an export of what it predicts.

Usage: python benchmarks/tpu_packs.py FOLDER [TARGET...], with libtpu installed; FOLDER keeps the lab databases, so that
a run that was cut short goes on. Without targets it makes all of them. Packs are written to ``attn_tune/packs``.

Only the kernels of splash attention: those are what predictions were held against published measurements for.
"""

import subprocess
import sys
from pathlib import Path

from attn_tune.tuner.targets import find_target

TARGETS = ("tpu-v4", "tpu-v5e", "tpu-v5p", "tpu-v6e", "tpu-7x")
KERNELS = ("pallas_tpu_splash", "pallas_tpu_splash_fused")
PROBLEMS = ("--grid", "llama3-8b")
MAX_TRIALS = "5"
PACKS = Path(__file__).parent.parent / "attn_tune" / "packs"


def attn_tune(*arguments: str) -> None:
    """Runs the command line of this checkout.

    Raises:
      CalledProcessError: it failed.
    """
    subprocess.run([sys.executable, "-m", "attn_tune", *arguments], check=True)


def make(target: str, folder: Path) -> None:
    """Sweeps ``target`` and writes its pack, named after the device."""
    database = str(folder / f"{target}.db")
    kernels = [argument for name in KERNELS for argument in ("--kernel", name)]
    effort = ("--max-trials", MAX_TRIALS)
    attn_tune("sweep", "--target", target, *PROBLEMS, *kernels, *effort, "--db", database)
    name = find_target(target).device.variant
    chosen = ("--device", name, "--allow-predicted", "--winners", "--overwrite")
    attn_tune("export", str(PACKS / name), "--db", database, "--name", name, *chosen)
    attn_tune("coverage", str(PACKS / name))


def main(folder: Path, targets: list[str]) -> None:
    """All of ``targets``, one after the other."""
    folder.mkdir(parents=True, exist_ok=True)
    for target in targets:
        make(target, folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:] or list(TARGETS))
