"""Untuned calls of Triton kernels by several assemblers: device time, spilled registers, and whether results are equal.

    python benchmarks/assemblers.py --out assemblers.json
    python benchmarks/assemblers.py --dry                         # registers and spilled bytes alone, without a GPU
    python benchmarks/assemblers.py --only kda --assembler /usr/local/cuda-12.9/bin/ptxas

An assembler (``ptxas``) turns what Triton compiles into machine code. Triton's wheel has one of older and one of newer
GPUs, and another one is taken where ``TRITON_PTXAS_PATH`` and ``TRITON_PTXAS_BLACKWELL_PATH`` name it. Tried are both
of the wheel, that of ``/usr/local/cuda``, and those of ``--assembler``, each in a process of its own; as kernels are
assembled anyway, and with each ``--options`` besides, of which the last wins. Triton 3.9 gives
``--regAllocOptLevel=2``, our kernels give 5 on Hopper, so that ``--options=--regAllocOptLevel=2`` is as Triton alone.
Times of one process stand beside that of a copy of 256 MiB in it. Results with equal digests are equal bit by bit.
"""

import argparse
import functools
import hashlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paged_decode_peers import versions
from untuned_peers import Compiled, copy_of, planned_device, problem_of, short, timed

from attn_tune.devices.environments import ASSEMBLER_VARIABLES, assembler

_CUDA = Path("/usr/local/cuda/bin/ptxas")
_STATE = "h=128 v=128 dtype=bfloat16 state=out"
_LATENT = "k=1 h=576 v=512 page=64 layout=latent dtype=bfloat16"
# A kernel, a direction, and the text of a signature behind the op's name and version.
_POINTS = (
    ("flash_attention/triton_hopper", "fwd", "b=4 t=4096 s=4096 n=32 k=8 h=128 v=128 dtype=bfloat16 causal=1"),
    ("flash_attention/triton_hopper", "fwd", "b=4 t=4096 s=4096 n=32 k=8 h=64 v=64 dtype=bfloat16 causal=1"),
    ("flash_attention/triton_hopper", "fwd", "b=4 t=4096 s=4096 n=16 k=8 h=256 v=256 dtype=bfloat16 causal=1"),
    ("flash_attention/triton_hopper_fused", "bwd", "b=4 t=4096 s=4096 n=32 k=8 h=128 v=128 dtype=bfloat16 causal=1"),
    ("flash_attention/triton_hopper_fused", "bwd", "b=4 t=4096 s=4096 n=32 k=8 h=64 v=64 dtype=bfloat16 causal=1"),
    ("gated_delta_rule/triton_hopper", "fwd", f"b=1 t=32768 n=64 k=16 {_STATE}"),
    ("gated_delta_rule/triton_hopper", "bwd", f"b=1 t=8192 n=32 k=16 {_STATE}"),
    ("linear_attention/triton_hopper", "fwd", f"b=1 t=8192 n=96 k=96 {_STATE}"),
    ("linear_attention/triton", "bwd", f"b=1 t=8192 n=96 k=96 {_STATE}"),
    ("kda/triton", "fwd", f"b=1 t=8192 n=16 k=16 {_STATE}"),
    ("kda/triton", "bwd", f"b=1 t=8192 n=16 k=16 {_STATE}"),
    ("gla/triton", "fwd", f"b=1 t=8192 n=96 k=96 {_STATE}"),
    ("gla/triton", "bwd", f"b=1 t=8192 n=96 k=96 {_STATE}"),
    ("paged_decode/triton_hopper", "fwd", f"b=128 t=1 s=4096 n=128 {_LATENT}"),
    ("paged_decode/triton_hopper", "fwd", f"b=128 t=1 s=4096 n=16 {_LATENT}"),
    ("ragged_paged/triton_hopper", "fwd", "b=8 t=8192 s=8192 n=32 k=8 h=128 v=128 page=64 dtype=bfloat16"),
    ("sparse_mla/triton_hopper", "fwd", "b=1 t=4096 s=32768 n=128 h=576 v=512 top=2048 dtype=bfloat16"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--assembler", type=Path, action="append", default=[], help="one more")
    parser.add_argument("--options", action="append", default=[], help="such as --options=--regAllocOptLevel=2")
    parser.add_argument("--only", nargs="*", default=[""], help="points that contain one of these")
    parser.add_argument("--dry", action="store_true", help="only compile, for this GPU or an H200")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=150.0, help="no point begins later than that in a process")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if args.child:
        return _measure(args)
    found = {name: path for path in (*_own(), _CUDA, *args.assembler) if (name := assembler(str(path)))}
    report: dict[str, Any] = {"versions": versions(), "rows": {}}
    for (name, path), options in itertools.product(found.items(), ("", *args.options)):
        label = f"{name} {options}".strip()
        print(f"\n{label}", flush=True)
        for point, row in _by(path, options, args).items():
            report["rows"].setdefault(point, {})[label] = row
        if args.out:
            args.out.write_text(json.dumps(report, indent=1) + "\n")
    print()
    for point, rows in report["rows"].items():
        print(point)
        for name, row in rows.items():
            print(f"  {name:38} {_words(row)}")
    return 0


def _own() -> list[Path]:
    """The assemblers in Triton's package."""
    import triton

    folder = Path(str(triton.__file__)).parent / "backends/nvidia/bin"
    return [folder / "ptxas", folder / "ptxas-blackwell"]


def _by(path: Path, options: str, args: argparse.Namespace) -> dict[str, Any]:
    """The rows of a process with one assembler and its options, by point."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "rows.json"
        environment = os.environ | dict.fromkeys(ASSEMBLER_VARIABLES, str(path))
        # A cache of its own: its key is the assembler's version, not the file.
        environment["TRITON_CACHE_DIR"] = str(Path(folder) / "cache")
        environment["PTXAS_OPTIONS"] = options
        given = ["--rounds", str(args.rounds), "--seconds", str(args.seconds), "--only", *args.only]
        command = [sys.executable, __file__, "--child", str(out), *given, *(["--dry"] if args.dry else [])]
        subprocess.run(command, env=environment, check=False)
        return json.loads(out.read_text()) if out.exists() else {}


def _measure(args: argparse.Namespace) -> int:
    """Writes the rows of this process."""
    rows: dict[str, Any] = {}
    end = time.monotonic() + args.seconds
    for kernel, direction, text in _POINTS:
        point = f"{kernel} {direction} {text}"
        if not any(word in point for word in args.only) or time.monotonic() > end:
            continue
        try:
            rows[point] = _row(kernel, direction, problem_of(kernel.partition("/")[0], text), args)
        except Exception as error:  # any error of a point is its result
            rows[point] = {"cannot": short(error)}
        print(f"  {_words(rows[point])}  {point}", flush=True)
        args.child.write_text(json.dumps(rows))
    return 0


def _row(kernel: str, direction: str, problem: Any, args: argparse.Namespace) -> dict[str, Any]:
    import jax
    import jax.numpy as jnp
    import numpy as np

    from attn_tune.kernels.lang.triton.compile import record_compiles
    from attn_tune.kernels.lang.triton.target import compile_target
    from attn_tune.kernels.registry import get_kernel
    from attn_tune.ops.contract import load
    from attn_tune.ops.registry import get_op

    op, search = get_op(kernel.partition("/")[0]), get_kernel(kernel).searches[direction]
    call = jax.jit(functools.partial(load(search.call), problem, search.heuristic(problem, planned_device())))
    make = functools.partial(load(op.inputs), problem, direction)
    if args.dry:
        inputs = jax.eval_shape(make, jax.ShapeDtypeStruct((), jnp.int32))
        with compile_target(planned_device().compute_capability or 90), record_compiles() as launches:
            call.trace(inputs).lower(lowering_platforms=("cuda",))
    else:
        inputs = jax.jit(make)(0)
        with record_compiles() as launches:
            compiled = call.lower(inputs).compile()
    row: dict[str, Any] = {"launches": [[one.name, one.registers, one.spill_bytes] for one in launches]}
    if args.dry:
        return row
    results = jax.tree.leaves(compiled(inputs))
    digest = hashlib.sha256(b"".join(np.asarray(x).tobytes() for x in results)).hexdigest()
    entries = {"us": functools.partial(compiled, inputs), "copy": copy_of(jnp.ones((32 << 20,), jnp.float32))}
    us = timed(kernel, Compiled(entries, {}), args.rounds, seconds=2.0)["us"]
    return row | us | {"results": digest[:12]}


def _words(row: dict[str, Any]) -> str:
    if "cannot" in row:
        return row["cannot"]
    spilled = "  ".join(
        f"{name} {registers} registers, {spill} bytes spilled" for name, registers, spill in row["launches"]
    )
    if "us" not in row:
        return spilled
    return f"{row['us']:10.1f} us  copy {row['copy']:6.1f} us  results {row['results']}  {spilled}"


if __name__ == "__main__":
    sys.exit(main())
