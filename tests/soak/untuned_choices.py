"""Compiles untuned choices of kernels for devices that are absent: where one fails, jobs take a slower kernel, or end.

    python -m tests.soak.untuned_choices --seconds 600 --seed 1
    python -m tests.soak.untuned_choices --seconds 600 --seed 1 --tpu
    python -m tests.soak.untuned_choices --seconds 600 --seed 1 --kind tpu-v5e --random

Problems are points of all grids, as they are and in float32, of which each shape of heads, flags and dtypes is taken
once, in an order of the seed; or such as ``random_problems`` makes. Kernels of Triton, Gluon among them, are compiled
to machine code, which fails where one block needs more shared memory, registers or columns of tensor memory than a GPU
of that family has. Those of Pallas for TPU are compiled by libtpu, which fails where blocks need more VMEM, or tables
more scalar memory, than their limits foresee. A program that is too large for the memory of a whole TPU is counted
apart where its arrays are large, or XLA's kernel does not fit either: there the call is too large, and not its config.
"""

import argparse
import collections
import dataclasses
import itertools
import os
import random
import re
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any

from attn_tune.devices.identity import device_from_kind
from attn_tune.ops.registry import get_op
from attn_tune.runtime.lookup.dispatch import choose
from attn_tune.runtime.lookup.resolution import Choice
from attn_tune.schema.errors import UnsupportedError, UsageError
from attn_tune.tuner.offline.compilers.tpu import compiler_environment
from attn_tune.tuner.offline.target import TOPOLOGIES
from attn_tune.tuner.plan.grid import preset_points
from tests.soak.random_problems import problems

KINDS = ("nvidia-a100-sxm4-80gb", "nvidia-l40s", "nvidia-h100-sxm5", "nvidia-b200", "nvidia-rtx-pro-6000-blackwell")
# Fields that decide how many programs there are, and not what one of them holds.
SIZES = ("batch", "q_len", "kv_len")
# The error of libtpu for a program that is larger than the memory of a device, with blocks of any size.
_NO_MEMORY = re.compile(r"CompileTimeHbmOom.* available HBM \(([\d.]+)G\)", re.DOTALL)
# A call that reads and writes this part of the memory is itself too large: copies of its arrays may not fit.
_LARGE = 0.25


@dataclasses.dataclass(frozen=True)
class Case:
    """One question to untuned choices."""

    op: str
    problem: Any
    direction: str
    kind: str

    def __str__(self) -> str:
        return f"{get_op(self.op).to_signature(self.problem)} {self.direction} on {self.kind}"


def cases(kinds: Iterable[str]) -> Iterator[Case]:
    """Each shape of the points of all grids once, in its dtype and in float32, for each device and direction."""
    seen = set()
    for point in preset_points():
        op = get_op(point.signature.op)
        problem = op.from_signature(point.signature)
        fields = dataclasses.asdict(problem)
        is_single = fields.get("q_len") == 1
        shape = (op.name, is_single, *(str(v) for k, v in fields.items() if k not in SIZES))
        if shape in seen:
            continue
        seen.add(shape)
        for p in {problem, _wide(problem)}:
            for direction in op.directions:
                for kind in kinds:
                    yield Case(op.name, p, direction, kind)


def _wide(problem: Any) -> Any:
    """The problem in float32, or as it is where its op or cache has none."""
    try:
        return dataclasses.replace(problem, dtype="float32")
    except UsageError:
        return problem


def random_cases(kinds: Iterable[str], seed: int) -> Iterator[Case]:
    """Problems at random without end, in each direction for one device."""
    for (name, problem), kind in zip(problems(seed), itertools.cycle(kinds)):
        for direction in get_op(name).directions:
            yield Case(name, problem, direction, kind)


def outcome(case: Case) -> tuple[str, str]:
    """``compiled``, or why nothing was, or ``failed``; and the compiler's error."""
    device = device_from_kind(case.kind)
    try:
        choice = choose(case.op, case.direction, case.problem, device=device)
    except UnsupportedError:
        # Such as gradients of a call whose states are updated in place.
        return "unsupported", ""
    compilers = {"triton": _compile_triton, "pallas_tpu": _compile_tpu}
    if choice.spec.backend not in compilers:
        return f"left to {choice.spec.name}", ""
    error = compilers[choice.spec.backend](case, choice)
    if error is None:
        return "compiled", ""
    # Behind the first lines libtpu lists all that it allocates.
    found = f"{case}: {choice.spec.id} {choice.answer.config}: {error.partition('\n\n')[0]}"
    if short := _NO_MEMORY.search(error):
        is_large = get_op(case.op).bytes_moved(case.problem, case.direction) > _LARGE * float(short[1]) * 2**30
        plain = choose(case.op, case.direction, case.problem, device=device, kernel="xla")
        if is_large or _compile_tpu(case, plain) is not None:
            return "too large for the device", found
        found += "\nXLA's kernel fits"
    return "failed", found


def _compile_triton(case: Case, choice: Choice) -> str | None:
    from attn_tune.kernels.lang.triton.limits import CompileError, OutOfResources
    from tests.kernels.triton_lowered import launches

    search = choice.spec.searches[case.direction]
    capability = int(device_from_kind(case.kind).family.removeprefix("sm_"))
    try:
        launches(get_op(case.op), case.problem, search, choice.config, direction=case.direction, capability=capability)
    except (CompileError, OutOfResources) as error:
        return str(error)
    return None


def _compile_tpu(case: Case, choice: Choice) -> str | None:
    from tests.kernels.tpu_compile import compile_error

    search = choice.spec.searches[case.direction]
    return compile_error(case.op, case.problem, search, choice.config, direction=case.direction, target=case.kind)


def main(arguments: list[str] | None = None) -> int:
    """Compiles cases until the time is over; 1 where one failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kind", action="append", help="only this kind of device; repeatable")
    parser.add_argument("--tpu", action="store_true", help="all kinds of TPU")
    parser.add_argument("--random", action="store_true", help="problems at random in place of those of grids")
    options = parser.parse_args(arguments)
    kinds = options.kind or (tuple(TOPOLOGIES) if options.tpu else KINDS)
    if set(kinds) & set(TOPOLOGIES):
        # Before libtpu is loaded, and JAX.
        os.environ.update(compiler_environment("", dumps=False))
    end = time.monotonic() + options.seconds
    if options.random:
        order: Iterable[Case] = random_cases(kinds, options.seed)
    else:
        order = sorted(cases(kinds), key=str)
        random.Random(options.seed).shuffle(order)
    counts = collections.Counter[tuple[str, str]]()
    for case in order:
        if time.monotonic() > end:
            break
        result, error = outcome(case)
        counts[case.kind, result] += 1
        if error:
            print(f"{result}: {error}", flush=True)
    for (kind, result), count in sorted(counts.items()):
        print(f"{kind}: {count} {result}")
    failures = sum(count for (_, result), count in counts.items() if result == "failed")
    print(f"{counts.total()} cases of seed {options.seed}, {failures} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
