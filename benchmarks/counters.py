"""Profiler counters that show a kernel's limit: every launch of some calls, by Nsight Compute.

    python benchmarks/counters.py --out counters.json | tee counters.txt

Each call is made by a process of its own under ``ncu``, with untuned configs, warm, at the clocks it finds. Shares are
of the peak while the multiprocessors are active; a unit near 100 % is the limit. A stall is how many warps wait for it
when one issues. Needs ``ncu`` and the right to read counters (``NVreg_RestrictProfilingToAdminUsers=0`` or root).
"""

import argparse
import csv
import ctypes
import io
import json
import math
import os
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

# Point of the grid ``peers``, direction, kernel.
CASES = (
    ("h64-causal/4x4k", "fwd", "triton_hopper"),
    ("h64-causal/4x4k", "fwd", "cudnn"),
    ("h128-causal/4x4k", "fwd", "triton_hopper"),
    ("h128-causal/4x4k", "fwd", "cudnn"),
    ("h128-window1k/4x4k", "fwd", "triton_hopper"),
    ("h128-segments/4x4k", "fwd", "triton_hopper"),
    ("h128-dropout/4x4k", "fwd", "triton_hopper"),
    ("h128-softcap/4x4k", "fwd", "triton_hopper"),
    ("h128-bias/4x4k", "fwd", "triton"),
    ("h128-causal/4x4k", "bwd", "triton"),
    ("h128-causal/4x4k", "bwd", "cudnn"),
    ("h256-causal/4x4k", "bwd", "triton"),
    ("h64-causal/4x4k", "bwd", "triton"),
)
# Which of the counters that the chip has, and what to ask of each.
_SHARES = re.compile(
    r"^(sm__inst_executed_pipe_(xu|alu|fma|fmaheavy|lsu|uniform)|sm__pipe_tensor_cycles_active"
    r"|smsp__issue_active|l1tex__data_pipe_lsu_wavefronts_mem_shared)$"
)
_STALLS = re.compile(r"^smsp__average_warps_issue_stalled_(?!.*not_issued)\w+_per_issue_active$")
_TIME = "gpu__time_duration.sum"
_ALWAYS = (
    _TIME,
    "sm__warps_active.avg.pct_of_peak_sustained_active",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "lts__t_sector_hit_rate.pct",
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", type=int, help="only run this case, to be profiled from outside")
    parser.add_argument("--only", type=int, nargs="*", help="numbers of cases; default: all")
    parser.add_argument("--timeout", type=float, default=90, help="seconds for each case")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.case is not None:
        call(*CASES[args.case])
        return 0
    if shutil.which("ncu") is None:
        print("error: no ncu on the PATH; it comes with the CUDA toolkit", file=sys.stderr)
        return 2
    metrics, found = chip_metrics(), []
    for number in range(len(CASES)) if args.only is None else args.only:
        launches = profile(number, metrics, args.timeout)
        found += [{"case": CASES[number], **launch} for launch in launches]
        show(CASES[number], launches)
        if args.out:
            args.out.write_text(json.dumps(found, indent=1) + "\n")
    return 0


def call(point: str, direction: str, kernel: str) -> None:
    """Makes the call twice; the second time counts."""
    import jax

    from attn_tune.devices.identity import current_device
    from attn_tune.kernels.registry import get_kernel
    from attn_tune.ops.contract import load
    from attn_tune.ops.flash_attention.inputs import make_inputs
    from attn_tune.ops.flash_attention.problem import Problem
    from attn_tune.tuner.plan.grid import load_grid

    points = {p.name: p for p in load_grid("peers", lengths=["all"]).points}
    problem = Problem.from_signature(points[f"peers.{point}"].signature)
    search = get_kernel(f"flash_attention/{kernel}").searches[direction]
    config = search.heuristic(problem, current_device())
    operands = jax.jit(lambda: make_inputs(problem, direction, 0))()
    run = jax.jit(lambda x: load(search.call)(problem, config, x)).lower(operands).compile()
    jax.block_until_ready(run(operands))
    driver = ctypes.CDLL("libcuda.so.1")
    driver.cuProfilerStart()
    jax.block_until_ready(run(operands))
    driver.cuProfilerStop()


def chip_metrics() -> list[str]:
    """The names that this chip has, with the part of each that is asked for."""
    listed = subprocess.run(["ncu", "--query-metrics"], capture_output=True, text=True, check=True)
    names = [line.split()[0] for line in listed.stdout.splitlines() if line.strip()]
    shares = [f"{n}.avg.pct_of_peak_sustained_active" for n in names if _SHARES.match(n)]
    return [*_ALWAYS, *shares, *(f"{n}.ratio" for n in names if _STALLS.match(n))]


def profile(number: int, metrics: Iterable[str], timeout: float) -> list[dict[str, Any]]:
    """The launches of one case: name and counters."""
    command = ["ncu", "--csv", "--page", "raw", "--profile-from-start", "off"]
    command += ["--clock-control", "none", "--metrics", ",".join(metrics)]
    command += [sys.executable, __file__, "--case", str(number)]
    # The profiler saves all memory that is taken, for every pass: none may be kept in reserve.
    environment = os.environ | {"XLA_PYTHON_CLIENT_ALLOCATOR": "platform"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=environment)
    except subprocess.TimeoutExpired:
        return [{"name": f"no end within {timeout:g} s", "counters": {}}]
    start = done.stdout.find('"ID"')
    if done.returncode or start < 0:
        return [{"name": f"failed: {(done.stdout + done.stderr)[-600:]}", "counters": {}}]
    rows = list(csv.DictReader(io.StringIO(done.stdout[start:])))[1:]  # the first says the units
    return [
        {
            "name": row["Kernel Name"],
            "counters": {m: _number(row[m]) for m in metrics if row.get(m)},
        }
        for row in rows
    ]


def _number(text: str) -> float | str:
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return text


def show(case: tuple[str, str, str], launches: Iterable[Mapping[str, Any]]) -> None:
    """Prints what is above 5 % of a peak, and the longest stalls."""
    print(f"\n{' '.join(case)}", flush=True)
    for launch in launches:
        counters = {k: v for k, v in launch["counters"].items() if isinstance(v, float)}
        groups: dict[bool, list[tuple[float, str]]] = defaultdict(list)
        for name, value in counters.items():
            if name != _TIME:
                groups["_stalled_" in name].append((value, name))
        print(f"  {launch['name'][:70]}  {counters.get(_TIME, math.nan) / 1e3:.0f} us")
        shares = [f"{_short(n)} {v:.0f} %" for v, n in groups[False] if v >= 5]
        stalls = [f"{_short(n)} {v:.2f}" for v, n in sorted(groups[True], reverse=True)[:5]]
        print(f"    {', '.join(shares)}\n    stalls: {', '.join(stalls)}", flush=True)


def _short(name: str) -> str:
    name = re.sub(r"_per_issue_active|\.avg|\.ratio|\.pct_of_peak_sustained_\w+", "", name)
    return re.sub(r"^\w+?__(average_warps_issue_stalled_|inst_executed_)?", "", name)


if __name__ == "__main__":
    sys.exit(main())
