"""Compiles untuned choices of GPU kernels for devices that are absent: where one fails, jobs take a slower kernel.

    python -m tests.soak.untuned_choices --seconds 600 --seed 1

Problems are points of all grids, as they are and in float32, of which each shape of heads, flags and dtypes is taken
once, in an order of the seed. Kernels of Triton, Gluon among them, are compiled to machine code, which fails where one
block needs more shared memory, registers or columns of tensor memory than a GPU of that family has.
"""

import argparse
import dataclasses
import random
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any

from attn_tune.devices.identity import device_from_kind
from attn_tune.kernels.lang.triton.limits import CompileError, OutOfResources
from attn_tune.ops.registry import get_op
from attn_tune.runtime.lookup.dispatch import choose
from attn_tune.schema.errors import UnsupportedError, UsageError
from attn_tune.tuner.plan.grid import preset_points
from tests.kernels.triton_lowered import launches

KINDS = ("nvidia-a100-sxm4-80gb", "nvidia-l40s", "nvidia-h100-sxm5", "nvidia-b200", "nvidia-rtx-pro-6000-blackwell")
# Fields that decide how many programs there are, and not what one of them holds.
SIZES = ("batch", "q_len", "kv_len")


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


def failure(case: Case) -> str | None:
    """The reason that the untuned choice of a case does not compile, or None."""
    device, op = device_from_kind(case.kind), get_op(case.op)
    try:
        choice = choose(case.op, case.direction, case.problem, device=device)
    except UnsupportedError:
        # Such as gradients of a call whose states are updated in place.
        return None
    if choice.spec.backend != "triton":
        return None
    search, capability = choice.spec.searches[case.direction], int(device.family.removeprefix("sm_"))
    try:
        launches(op, case.problem, search, choice.config, direction=case.direction, capability=capability)
    except (CompileError, OutOfResources) as error:
        return f"{case}: {choice.spec.id} {choice.answer.config}: {error}"
    return None


def main(arguments: list[str] | None = None) -> int:
    """Compiles cases until the time is over; 1 where one failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kind", action="append", help="only this kind of device; repeatable")
    options = parser.parse_args(arguments)
    end = time.monotonic() + options.seconds
    order = sorted(cases(options.kind or KINDS), key=str)
    random.Random(options.seed).shuffle(order)
    failures, done = [], 0
    for case in order:
        if time.monotonic() > end:
            break
        done += 1
        if reason := failure(case):
            failures.append(reason)
            print(reason, flush=True)
    print(f"{done} of {len(order)} cases of seed {options.seed} compiled, {len(failures)} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
