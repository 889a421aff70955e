"""Show the cases and the number of configs of a sweep, without running it.

With --device it is that of a sweep on such a device, with the software that is installed here. With --target it is
that of a sweep with the same option.

Example: attn-tune plan --grid gemma3-27b --lengths 4k --device nvidia-h200

Example: attn-tune plan --grid llama3-8b --lengths 4k --target tpu-v5e
"""

from typing import TYPE_CHECKING

from attn_tune.commands.shared import options, output, selection
from attn_tune.commands.shared.cases import Cases, Search
from attn_tune.commands.shared.database import open_lab
from attn_tune.commands.shared.sources import Sources
from attn_tune.commands.sweeps.database_sweep import SweepRequest, plan_sweep
from attn_tune.schema import NoDataError, UsageError
from attn_tune.schema.words import counted

if TYPE_CHECKING:
    from attn_tune.db.store.runs import Pace
    from attn_tune.tuner.plan.plan import Plan


@options.grouped
def command(
    db: options.Database,
    cases: Cases,
    sources: Sources,
    search: Search,
    device: options.DeviceName = None,
    target: options.Target = None,
    every: options.All = False,
    json: options.Json = False,
) -> None:
    if device is not None and target is not None:
        raise UsageError("--device and --target both name the device; give one of them")
    request = SweepRequest.of(db, cases, sources, search, only_compiles=target is not None)
    if target is not None:
        from attn_tune.commands.sweeps.target_sweep import for_target

        request, found = for_target(request, target)
        device = found.device.variant
    show_plan(request, device=device, every=every, json=json)


def show_plan(
    request: SweepRequest,
    *,
    device: str | None,
    json: bool,
    every: bool = False,
    how: str = "--all",
) -> None:
    """Print the plan of ``request`` on ``device``, None for this machine's.

    Without ``every`` one line stands for the kernels that cannot run there, and names ``how`` to list them; not where
    there are no others.
    """
    import pandas as pd

    from attn_tune.tuner.plan.duration import guessed_s

    made, pace = _plan(request, device)
    rows = [
        {
            "point": selection.brief("+".join(planned.case.names)),
            "direction": planned.case.direction,
            "kernel": kernel.kernel.id,
            "configs": sum(len(part.space) for part in kernel.parts),
            "to try": kernel.todo,
            "tried": sum(part.done for part in kernel.parts),
            "refused": len(kernel.pruned) if kernel.runnable else 0,
            "remark": _remark(kernel),
        }
        for planned in made.cases
        for kernel in planned.kernels
    ]
    counts = made.counts
    low, high = guessed_s(made) if pace is None else [counts.todo * pace.seconds] * 2
    strategy = str(request.effort.strategy) if request.effort else "exhaustive"
    if json:
        totals = {
            "cases": counts.cases,
            "to_try": counts.todo,
            "tried": counts.done,
            "refused": counts.pruned,
            "unsupported_kernels": counts.unsupported_kernels,
            "least_s": round(low),
            "most_s": round(high),
            "estimated_from": "sizes" if pace is None else "recorded",
        }
        rows = [{key.replace(" ", "_"): value for key, value in row.items()} for row in rows]
        output.emit_json(device=made.device.identity, strategy=strategy, totals=totals, kernels=rows)
        return
    from attn_tune.commands.sweeps.display import clock

    away = set() if every else selection.absent(request.kernels, made.device)
    away &= {row["kernel"] for row in rows}
    idle = set() if every else _without_use(made)
    shown = [row for n, row in enumerate(rows) if n not in idle and row["kernel"] not in away]
    if not shown:
        # An empty table would say nothing of what was asked for.
        shown, away, idle = rows, set(), set()
    frame = pd.DataFrame(shown, columns=list(rows[0]))
    output.emit_frame(frame, title=f"Plan on {made.device}")
    output.say_absent(away, how)
    if left := sum(rows[n]["kernel"] not in away for n in idle):
        output.say(f"{counted(left, 'pair')} of case and kernel left out: the kernel cannot do it ({how} says why)")
    output.say(
        f"{counted(counts.cases, 'case')}, at most {counted(counts.todo, 'config')} to try by strategy {strategy}, "
        f"{counts.done} tried before, {counts.pruned} refused beforehand; "
        + (
            f"about {clock(low)} to {clock(high)}: a guess by the sizes, references and feature problems "
            "among them, as no sweep on such a device is recorded"
            if pace is None
            else f"about {clock(low)}, as the last {counted(pace.configs, 'config')} of the database on such a device "
            f"({pace.seconds:.2g} s each)"
        )
    )


def _without_use(plan: "Plan") -> set[int]:
    """The rows of kernels that cannot do a case that another kernel can."""
    rows = [(case, kernel) for case in plan.cases for kernel in case.kernels]
    return {
        number
        for number, (case, kernel) in enumerate(rows)
        if not kernel.runnable and any(one.runnable for one in case.kernels)
    }


def _plan(request: SweepRequest, device: str | None) -> "tuple[Plan, Pace | None]":
    """The plan, and the pace of the last sweeps on such a device."""
    from attn_tune.devices.environments import current_environment

    target, environment = selection.device(device), current_environment()
    try:
        with open_lab(request.database) as database:
            pace = database.pace(target)
            return plan_sweep(request, target, environment, database), pace
    except NoDataError:
        if request.database.exists():
            raise
        return plan_sweep(request, target, environment, None), None


def _remark(kernel) -> str:
    if not kernel.runnable:
        return kernel.pruned[0].reason if kernel.pruned else "refused in an earlier run"
    if kernel.far_behind:
        return "far behind another kernel: its other configs are left out (--effort full tries them)"
    return "" if kernel.todo or kernel.finals else "finished"
