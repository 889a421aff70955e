"""Keeps the rows of a pack whose kernels' source changed and whose compiled programs did not.

    python benchmarks/restamp_pack.py attn_tune/packs/shipped/nvidia-h200 --before OLD_CHECKOUT --out nvidia-h200.atpack

A row is proof of what was measured: of the machine code. Its environment names the kernel's source by a digest, and a
changed digest makes the row stale even where the compiler still makes the same code. For each such row the call is
lowered from the old checkout, which must be the source it was measured with, and from this one, both by what is
installed. Of a Triton kernel every launch is compiled, by the Triton the row was measured with, and kernels, grids and
code must be equal; of any other, those for TPUs too, the lowered StableHLO, which holds all that its library is told.
Equal rows get the digest of today; all others are left out and named, and so are rows whose signature no problem has
any more. Rows that are not stale are copied. Nothing runs, no GPU or TPU is needed.
"""

import argparse
import dataclasses
import importlib.metadata
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from attn_tune.kernels.registry import get_kernel, get_op
from attn_tune.packs.reader import Pack, read_pack
from attn_tune.packs.rows import Row
from attn_tune.packs.writer import check_target, files_of_rows, write_pack
from attn_tune.runtime.answer import Knobs
from attn_tune.schema import Environment
from attn_tune.schema.config import config_from_dict, config_to_dict

HERE = Path(__file__).resolve().parent.parent
# Run with either checkout on its path: one JSON line a row, the programs of its launches or what it is lowered to.
PROGRAMS = """
import json, sys
import jax
from attn_tune.kernels._common.triton_compile import record_compiles
from attn_tune.kernels._common.triton_target import compile_target
from attn_tune.kernels.registry import get_kernel, get_op
from attn_tune.kernels.spec import load
from attn_tune.schema.config import config_from_dict

# Where a line stood is no part of the program.
jax.config.update("jax_traceback_in_locations_limit", 0)

def programs(row):
    op, spec = get_op(row["op"]), get_kernel(row["op"] + "/" + row["kernel"])
    search = spec.searches[row["direction"]]
    config = config_from_dict(search.config, row["config"])
    problem = op.from_signature(op.parse_signature(row["signature"]))
    inputs = jax.eval_shape(lambda: load(op.inputs)(problem, row["direction"], 0))
    call = lambda x: load(search.call)(problem, config, x)
    if row["target"]:
        from attn_tune.tuner.targets.target import find_target
        from attn_tune.tuner.targets.tpu import seeming, target_device

        with seeming(target_device(find_target(row["target"]).topology)):
            lowered = jax.jit(call).trace(inputs).lower(lowering_platforms=("tpu",))
        return {"source": spec.source_hash, "made": [lowered.as_text()]}
    with compile_target(row["capability"]), record_compiles() as done:
        lowered = jax.jit(call).trace(inputs).lower(lowering_platforms=("cuda",))
    made = done.launches if spec.backend == "triton" else [lowered.as_text()]
    return {"source": spec.source_hash, "made": made}

for line in sys.stdin:
    try:
        answer = programs(json.loads(line))
    except Exception as error:  # a row that this checkout cannot lower is one that is left out
        answer = {"failed": f"{type(error).__name__}: {error}"[:200]}
    print(json.dumps(answer), flush=True)
"""
# Its compiler is only asked what a TPU is called.
_WITHOUT_A_TPU = {"TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}


def main() -> int:
    args = _arguments()
    pack = read_pack(args.pack)
    check_target(args.out, overwrite=args.overwrite)
    kept = args.keep or ()
    rows = [row for row in pack.rows if _has_a_problem(row)]
    current = {row.key for row in rows if row.kernel in kept or not _is_stale(row, pack)}
    stale, not_asked = [], []
    for row in rows:
        if row.key not in current:
            asked = not args.kernel or row.kernel in args.kernel
            (stale if asked else not_asked).append(row)
    before, now = _programs(stale, pack, (args.before, HERE), args.jobs)
    equal = [
        row
        for row, a, b in zip(stale, before, now, strict=True)
        if a.get("source") == pack.environments[row.env].source_hash and a["made"] == b.get("made")
    ]
    for row in stale:
        verdict = "the same programs" if row in equal else "LEFT OUT: other programs"
        print(f"{row.kernel:14s} {row.direction} {row.signature}: {verdict}")
    for row in pack.rows:
        if row not in rows:
            print(
                f"{row.kernel:14s} {row.direction} {row.signature}: LEFT OUT: no problem is said so"
            )
    for row in not_asked:
        print(f"{row.kernel:14s} {row.direction} {row.signature}: LEFT OUT: not asked for")
    restamped, environments = _restamp(equal, pack)
    packed = [_with_todays_knobs(row) for row in rows if row.key in current] + restamped
    used = {row.env for row in packed}
    files = files_of_rows(
        packed,
        name=pack.name,
        version=args.version or pack.version,
        devices=pack.devices,
        environments={k: v for k, v in (pack.environments | environments).items() if k in used},
        contracts=pack.contracts,
        gate=dict(pack.gate),
        quarantine=pack.quarantine.entries,
    )
    write_pack(args.out, files)
    print(
        f"{len(current)} rows kept, {len(equal)} restamped, {len(pack.rows) - len(packed)} left out"
    )
    return 0


def _has_a_problem(row: Row) -> bool:
    """Whether a problem has the row's signature: not one of a window that hides nothing, say."""
    op = get_op(row.op)
    return op.from_signature(op.parse_signature(row.signature)).signature.text == row.signature


def _is_stale(row: Row, pack: Pack) -> bool:
    return (
        pack.environments[row.env].source_hash != get_kernel(f"{row.op}/{row.kernel}").source_hash
    )


def _programs(
    rows: Sequence[Row], pack: Pack, checkouts: Sequence[Path], jobs: int
) -> list[list[dict[str, Any]]]:
    """By checkout, each row's digest of the source there and what its call compiles to; neither where it cannot be."""
    installed = importlib.metadata.version("triton")
    asked = [
        row
        for row in rows
        if get_kernel(f"{row.op}/{row.kernel}").backend != "triton"
        or pack.environments[row.env].triton == installed
    ]
    lines = [json.dumps(_question(row, pack)) for row in asked]
    work = [(checkout, lines[i::jobs]) for checkout in checkouts for i in range(jobs)]
    with ThreadPoolExecutor(len(work)) as pool:
        answers = list(pool.map(lambda item: _answers(*item), work))
    found = []
    for n, _ in enumerate(checkouts):
        by_row = {}
        for i, part in enumerate(answers[n * jobs : (n + 1) * jobs]):
            by_row |= dict(zip((row.key for row in asked[i::jobs]), part, strict=True))
        found.append([by_row.get(row.key, {}) for row in rows])
    return found


def _answers(checkout: Path, lines: Sequence[str]) -> list[dict[str, Any]]:
    path = os.pathsep.join(filter(None, (str(checkout.resolve()), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAMS],
        cwd=checkout,
        env=os.environ | {"PYTHONPATH": path, "JAX_PLATFORMS": "cpu"} | _WITHOUT_A_TPU,
        input="\n".join(lines),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def _question(row: Row, pack: Pack) -> Mapping[str, Any]:
    device = pack.devices[row.device]
    named = {name: getattr(row, name) for name in ("op", "kernel", "direction", "signature")}
    return (
        named
        | {"config": dict(row.config), "capability": device.compute_capability}
        | {"target": device.variant if device.platform == "tpu" else ""}
    )


def _restamp(rows: Sequence[Row], pack: Pack) -> tuple[list[Row], dict[str, Environment]]:
    made, environments = [], {}
    for row in rows:
        source = get_kernel(f"{row.op}/{row.kernel}").source_hash
        environment = dataclasses.replace(pack.environments[row.env], source_hash=source)
        environments[environment.digest] = environment
        made.append(dataclasses.replace(_with_todays_knobs(row), env=environment.digest))
    return made, environments


def _with_todays_knobs(row: Row) -> Row:
    """Knobs that a kernel has got since are in the config, at the value that changes nothing."""
    known = get_kernel(f"{row.op}/{row.kernel}").searches[row.direction].config
    config = config_to_dict(config_from_dict(known, dict(row.config)))
    return dataclasses.replace(row, config=Knobs(config))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pack", type=Path)
    parser.add_argument("--before", type=Path, required=True, help="a checkout of the rows' source")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--version", help="default: the pack's own")
    parser.add_argument(
        "--kernel",
        action="append",
        help="only stale rows of this kernel; those of others are left out",
    )
    parser.add_argument(
        "--keep",
        action="append",
        help="copy the rows of this kernel: its digest holds its library's, which is not installed here",
    )
    parser.add_argument("--jobs", type=int, default=1, help="processes for each checkout")
    parser.add_argument("--overwrite", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
