"""``attn-tune kernels``."""

from collections import Counter
from typing import TYPE_CHECKING, Annotated

import typer

from attn_tune.commands.shared import options, output, selection

if TYPE_CHECKING:
    from attn_tune.kernels.spec import KernelSpec
    from attn_tune.tuner.plan import KernelPlan

EXAMPLE = "llama3-8b/4x4k"


def kernels(
    point: Annotated[
        str,
        typer.Argument(
            help="The problem that support and spaces are told for: a grid point or a signature."
        ),
    ] = EXAMPLE,
    grid: options.PointGrids = None,
    op: options.Ops = None,
    kernel: options.Kernels = None,
    direction: options.Directions = None,
    device: options.DeviceName = None,
    every: options.All = False,
    json: options.Json = False,
) -> None:
    """List the kernels: what each can do here, or why it cannot.

    Example: attn-tune kernels gpt-oss-20b.local/4x4k --device sm_90
    """
    import pandas as pd

    target = selection.device(device)
    asked = selection.signature(point, grid)
    specs = selection.kernels(kernel, op)
    rows = [_other(spec, asked.op) for spec in specs if spec.op != asked.op]
    if own := [spec for spec in specs if spec.op == asked.op]:
        from attn_tune.runtime.environments import current_environment
        from attn_tune.tuner.plan import make_plan

        made = make_plan(
            [asked],
            kernels=own,
            device=target,
            environment=current_environment(),
            directions=selection.directions(direction),
        )
        rows = [_row(k, c.case.direction) for c in made.cases for k in c.kernels] + rows
    away = set() if json or every else selection.absent(specs, target)
    output.emit_formatted(
        pd.DataFrame([row for row in rows if row["kernel"] not in away], columns=list(rows[0])),
        options.table_or_json(json),
        title=f"{selection.brief(asked.name)} on {target}",
        key="kernels",
    )
    output.say_absent(away)


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
    """Why two runs may differ in their last bits; empty if they never do."""
    search = spec.searches.get(direction)
    return search.nondeterministic if search else ""


def _other(spec: "KernelSpec", op: str) -> dict[str, object]:
    return {
        "kernel": spec.id,
        "backend": spec.backend,
        "direction": "",
        "supported": False,
        "deterministic": not any(search.nondeterministic for search in spec.searches.values()),
        "configs": "",
        "remark": f"not of {op}; ask with a point of {spec.op}",
    }
