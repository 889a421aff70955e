"""From a model to the pack it then uses: find its attention calls, sweep them, export, run again.

    python benchmarks/model_to_pack.py --out benchmarks/results/cpu

Two training steps of the flax transformer in ``flax_step.py``, one with ``jax.nn.dot_product_attention`` and one with
our op, are read in five ways each (traced, lowered text, exported bytecode, HLO text, and for ours the optimised
program and the spool of a run that missed): all must name the same problems, directions and counts. These are swept
through the command line, exported, and a second run must take every config from that pack. Needs flax.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent

RUN = """
import json, attn_tune, flax_step
losses = flax_step.losses(flax_step.our_attention)
stats = attn_tune.stats()
asked = [("flash_attention", s, d) for s, d in json.loads({problems!r})]
answers = [str(attn_tune.explain(op, s, d).answer) for op, s, d in asked]
lookups = {{str(rung): n for rung, n in stats.lookups.items() if n}}
print(json.dumps({{"losses": losses, "lookups": lookups, "answers": answers}}))
"""

LOWER = """
import sys, pathlib, jax, flax_step
folder = pathlib.Path(sys.argv[1])
for name in ("stock", "ours"):
    step, args = getattr(flax_step, name)()
    # Leaves only: what a file says must not depend on flax's containers.
    leaves, tree = jax.tree.flatten(args)
    def flat(*leaves, step=step, tree=tree):
        return jax.tree.leaves(step(*jax.tree.unflatten(tree, leaves)))
    jitted = jax.jit(flat)
    lowered = jitted.lower(*leaves)
    (folder / f"{name}.mlir").write_text(lowered.as_text())
    (folder / f"{name}.hlo.txt").write_text(lowered.as_text(dialect="hlo"))
    (folder / f"{name}.bc").write_bytes(jax.export.export(jitted)(*leaves).mlir_module_serialized)
    if name == "ours":
        (folder / f"{name}.optimised.txt").write_text(lowered.compile().as_text())
"""


def main(words: Sequence[str] | None = None) -> int:
    """Runs all of it; 0 if every way agrees and the second run misses nothing."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="folder for model_to_pack.json")
    parser.add_argument("--max-trials", type=int, default=3)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--length", type=int, default=256, help="tokens a sequence")
    args = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as folder:
        result = run(Path(folder), args)
    text = json.dumps(result, indent=2)
    print(text)
    if args.out:
        (args.out / "model_to_pack.json").write_text(text + "\n")
    return 0 if result["agree"] and set(result["second run"]["lookups"]) == {"exact"} else 1


def run(folder: Path, args: argparse.Namespace) -> dict:
    """All steps, in ``folder``."""
    shell = _Shell(folder, args.layers, args.length)
    shell.python(LOWER, str(folder))
    ways = {f"--from-fn flax_step:{name}": shell.grid("--from-fn", f"flax_step:{name}") for name in ("stock", "ours")}
    for file in sorted(folder.glob("*.*")):
        if file.suffix in (".mlir", ".txt", ".bc"):
            ways[f"--from-hlo {file.name}"] = shell.grid("--from-hlo", str(file))
    found = ways["--from-fn flax_step:stock"]
    problems = [[signature, d] for signature, (directions, _) in found.items() for d in directions.split(",")]
    # Equal calls made at one place of an optimised program are counted once: problems and directions must agree there.
    plain = {way: {s: v[0] for s, v in grid.items()} for way, grid in ways.items()}
    counted = [grid for way, grid in ways.items() if "optimised" not in way]
    missed_by = ("--from-misses", "--spool", str(folder / "spool"))
    first = shell.train(problems, ATTN_TUNE_ON_MISS=f"record:{folder / 'spool'}")
    ways["--from-misses"] = shell.grid(*missed_by)
    missed = {s: v[0] for s, v in ways["--from-misses"].items()}
    agree = (
        all(grid == found for grid in counted)
        and all(grid == plain["--from-fn flax_step:stock"] for grid in plain.values())
        and missed == plain["--from-fn flax_step:stock"]
    )
    sweep = ["sweep", "-k", "xla", "--max-trials", str(args.max_trials), "--json"]
    swept = shell.tool(*sweep, "--from-fn", "flax_step:stock")
    again = shell.tool(*sweep, *missed_by)
    shell.tool("export", str(folder / "pack.atpack"), "--max-regret", "1000", json_wanted=False)
    second = shell.train(problems, ATTN_TUNE_PACKS=str(folder / "pack.atpack"))
    return {
        "ways": ways,
        "agree": agree,
        "sweep": {k: swept[k] for k in ("ending", "trials", "statuses", "without_valid_config")},
        "sweep --from-misses, after it": {k: again[k] for k in ("ending", "trials", "tried_before")},
        "first run": first,
        "second run": second,
    }


class _Shell:
    """Processes of their own, as the real thing is; nothing of the user's is touched."""

    def __init__(self, folder: Path, layers: int, length: int):
        self.folder = folder
        self.base = {k: v for k, v in os.environ.items() if not k.startswith("ATTN_TUNE_")} | {
            "ATTN_TUNE_DB": str(folder / "lab.db"),
            "XDG_DATA_HOME": str(folder / "data"),
            "FLAX_STEP_LAYERS": str(layers),
            "FLAX_STEP_LENGTH": str(length),
            "JAX_PLATFORMS": "cpu",
            "PYTHONPATH": os.pathsep.join((str(HERE), str(HERE.parent))),
        }

    def python(self, code: str, *words: str, **environment: str) -> str:
        """Runs Python code; its standard output."""
        return self._run([sys.executable, "-c", code, *words], environment)

    def tool(self, *words: str, json_wanted: bool = True) -> dict:
        """Runs ``attn-tune``."""
        text = self._run([sys.executable, "-m", "attn_tune", *words], {})
        return json.loads(text) if json_wanted else {}

    def grid(self, *words: str) -> dict[str, tuple[str, int]]:
        """Directions and calls by signature."""
        points = self.tool("grids", *words, "--json")["points"]
        return {p["signature"]: (p["directions"], p["calls"]) for p in points}

    def train(self, problems: list, **environment: str) -> dict:
        """Trains with our op and tells what the lookups answered."""
        code = RUN.format(problems=json.dumps(problems))
        return json.loads(self.python(code, **environment).splitlines()[-1])

    def _run(self, command: list[str], environment: dict[str, str]) -> str:
        done = subprocess.run(command, env=self.base | environment, capture_output=True, text=True, cwd=self.folder)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)[:200]} ended with {done.returncode}:\n{done.stderr}")
        return done.stdout


if __name__ == "__main__":
    sys.exit(main())
