"""List the kernels: directions, support, determinism and the number of configs of each.

Without a point the problem is an example of each op.

Example: attn-tune kernels gpt-oss-20b.local/4x4k --device sm_90
"""

from collections import Counter
from typing import TYPE_CHECKING

from attn_tune.commands.shared import options, output, selection

if TYPE_CHECKING:
    from attn_tune.kernels.spec import KernelSpec
    from attn_tune.tuner.plan.grid import GridPoint
    from attn_tune.tuner.plan.plan import KernelPlan

EXAMPLE = "llama3-8b/4x4k"


def command(
    point: str | None = options.argument(
        "POINT",
        "The problem whose support and number of configs are shown: a grid point or a signature. "
        "Default: an example of each op.",
        None,
    ),
    grid: options.PointGrids = None,
    workload: options.Workload = None,
    op: options.Ops = None,
    kernel: options.Kernels = None,
    direction: options.Directions = None,
    device: options.DeviceName = None,
    every: options.All = False,
    json: options.Json = False,
) -> None:
    import pandas as pd

    from attn_tune.devices.environments import current_environment
    from attn_tune.ops.registry import get_op
    from attn_tune.tuner.plan.planner import make_plan

    target = selection.device(device)
    specs = selection.kernels(kernel, op)
    asked = [selection.signature(point, grid)] if point else _examples({s.op for s in specs})
    if workload:
        asked = list(selection.with_workloads(asked, [workload]))
    ops = {one.op for one in asked}
    own = [spec for spec in specs if spec.op in ops]
    rows = []
    if own:
        made = make_plan(
            asked,
            kernels=own,
            device=target,
            environment=current_environment(),
            directions=selection.directions(direction, [get_op(one.op) for one in asked]),
        )
        rows = [
            _row(kernel, one.case.direction)
            for one in made.cases
            for kernel in one.kernels
            if json or every or one.case.direction in kernel.kernel.searches
        ]
    rows += [_other(spec, point) for spec in specs if spec.op not in ops]
    away = set() if json or every else selection.absent(specs, target)
    names = ", ".join(selection.brief(one.name) for one in asked)
    frame = pd.DataFrame([row for row in rows if row["kernel"] not in away], columns=_COLUMNS)
    # A kernel without configs is not supported, and the remark says why.
    output.emit_formatted(
        frame if json else frame.drop(columns=["supported"]),
        options.table_or_json(json),
        title=f"{names or 'Kernels'} on {target}",
        key="kernels",
    )
    output.say_absent(away)


def _examples(ops: set[str]) -> "list[GridPoint]":
    """One point of each op: of a preset, or else the op's first sample."""
    from attn_tune.ops.contract import load
    from attn_tune.ops.registry import get_op
    from attn_tune.tuner.plan.case import GridPoint
    from attn_tune.tuner.plan.grid import preset_points

    found: dict[str, GridPoint] = {}
    for point in preset_points():
        if point.op in ops and (point.op not in found or point.name == EXAMPLE):
            found[point.op] = point
    for op in (get_op(name) for name in sorted(ops - set(found))):
        if op.samples:
            label, problem = next(iter(load(op.samples)().items()))
            name = f"the sample {label} of {op.name}"
            found[op.name] = GridPoint(name=name, op=op.name, signature=op.to_signature(problem))
    return list(found.values())


_COLUMNS = ["kernel", "backend", "direction", "supported", "deterministic", "configs", "remark"]


def _row(plan: "KernelPlan", direction: str) -> dict[str, object]:
    row: dict[str, object] = {
        "kernel": plan.kernel.id,
        "backend": plan.kernel.backend,
        "direction": direction,
        "supported": plan.runnable,
        "deterministic": not _why_not(plan.kernel, direction),
    }
    if not plan.runnable:
        return row | {"configs": "", "remark": plan.pruned[0].reason}
    refused = Counter(trial.part for trial in plan.pruned)
    sizes = []
    for part in plan.parts:
        text = str(len(part.candidates))
        if refused[part.part]:
            text += f" of {len(part.candidates) + refused[part.part]}"
        sizes.append(f"{part.part}: {text}" if part.part else text)
    remark = plan.kernel.summary
    if why := _why_not(plan.kernel, direction):
        remark += f"; not deterministic: {why}"
    return row | {"configs": ", ".join(sizes), "remark": remark}


def _why_not(spec: "KernelSpec", direction: str) -> str:
    """The reason why two runs may differ in their last bits; empty if they never do."""
    search = spec.searches.get(direction)
    return search.nondeterministic if search else ""


def _other(spec: "KernelSpec", point: str | None) -> dict[str, object]:
    other = f"not of the op of {point}" if point else "no preset has a point of its op, and the op has no sample"
    return {
        "kernel": spec.id,
        "backend": spec.backend,
        "direction": "",
        "supported": False,
        "deterministic": not any(search.nondeterministic for search in spec.searches.values()),
        "configs": "",
        "remark": f"{other}; name one of {spec.op}",
    }
