"""Start-up times: importing the package beside jax, the first lookup's modules, ``attn-tune --help``.

    python benchmarks/start_up.py --out start_up.json

Each figure is the median of processes of their own, the page cache warm. ``import attn_tune`` is timed after
``import jax`` in the same process, with the modules it adds. Its names are loaded when they are first used, so the
whole of it is timed too: everything that ``attn_tune.lookup`` and ``attn_tune.use_pack`` need, and the first answer of
a process that asks as if it were on an H200, also after jax and its devices. On a shared machine the processor time
tells what the wall time hides.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

ADDED = """
import sys, time, jax
jax.devices()
before = set(sys.modules)
start, begun = time.perf_counter(), time.process_time()
{statement}
took, used = time.perf_counter() - start, time.process_time() - begun
added = sorted(set(sys.modules) - before)
print(took * 1e3, used * 1e3, len(added), len([m for m in added if m.startswith("attn_tune")]))
"""
TEXT = "flash_attention/v1 b=4 t=4096 s=4096 n=32 k=8 h=128 v=128 dtype=bfloat16 causal=1"
STATEMENTS = {
    "import attn_tune": "import attn_tune",
    "attn_tune.packs.reader": "import attn_tune.packs.reader",
    "attn_tune.lookup and use_pack, all they need": "import attn_tune; attn_tune.lookup; attn_tune.use_pack",
    "attn_tune.lookup, and its first answer": f"import attn_tune; attn_tune.lookup('flash_attention', {TEXT!r})",
}
HELP = "import sys; sys.argv = ['attn-tune', '--help']; from attn_tune.cli import main; main()"


def python(code: str) -> tuple[str, float, float]:
    """(standard output, seconds of the whole process, seconds of processor time it took)."""
    given = {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "ATTN_TUNE_DEVICE_AS": "nvidia-h200"}
    environment = {**os.environ, **given}
    before, start = _children(), time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return done.stdout, time.perf_counter() - start, _children() - before


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=15)
    parser.add_argument("--out")
    args = parser.parse_args()
    record: dict = {
        "load before": [round(x, 1) for x in os.getloadavg()],
        "python": sys.version.split()[0],
    }
    for name, statement in STATEMENTS.items():
        runs = [python(ADDED.format(statement=statement))[0].split() for _ in range(args.processes)]
        times = [float(run[0]) for run in runs]
        record[name] = {
            "ms median": round(statistics.median(times), 2),
            "ms worst": round(max(times), 2),
            "ms of processor, median": round(statistics.median(float(run[1]) for run in runs), 2),
            "modules": int(runs[0][2]),
            "of them ours": int(runs[0][3]),
        }
    for name, code in (("attn-tune --help", HELP), ("python itself", "pass")):
        runs = [python(code) for _ in range(args.processes * 2)]
        walls, used = sorted(r[1] * 1e3 for r in runs), [r[2] * 1e3 for r in runs]
        record[name] = {
            "ms median": round(statistics.median(walls), 1),
            "ms fastest": round(walls[0], 1),
            "ms worst": round(walls[-1], 1),
            "ms of processor, median": round(statistics.median(used), 1),
        }
    record["load after"] = [round(x, 1) for x in os.getloadavg()]
    print(json.dumps(record, indent=1))
    if args.out:
        Path(args.out).write_text(json.dumps(record, indent=1) + "\n")
    package, command = record["import attn_tune"], record["attn-tune --help"]
    good = package["ms median"] <= 5 and package["modules"] <= 8 and command["ms median"] <= 150
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
