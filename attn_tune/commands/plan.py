"""``attn-tune plan``."""

from typing import TYPE_CHECKING

from attn_tune.commands.shared import options, output, selection, sources
from attn_tune.commands.sweeps.database_sweep import SweepRequest, open_lab, plan_sweep
from attn_tune.schema import NoDataError
from attn_tune.schema.words import counted

if TYPE_CHECKING:
    from attn_tune.tuner import Plan

# What one config costs on a GPU host, compile and validation included; it only has to be of the right order.
SECONDS_PER_CONFIG = 2.0


def plan(
    db: options.Database,
    grid: options.Grids = None,
    from_fn: sources.FromFn = None,
    from_hlo: sources.FromHlo = None,
    from_misses: sources.FromMisses = False,
    spool: sources.SpoolPath = None,
    missed_on: sources.MissedOn = None,
    lengths: options.Lengths = None,
    point: options.Points = None,
    op: options.Ops = None,
    kernel: options.Kernels = None,
    direction: options.Directions = None,
    effort: options.EffortChoice = None,
    strategy: options.StrategyChoice = None,
    max_trials: options.MaxTrials = None,
    allow_nondeterministic: options.AllowNondeterministic = False,
    device: options.DeviceName = None,
    every: options.All = False,
    json: options.Json = False,
) -> None:
    """Show what a sweep would do, without doing it.

    Example: attn-tune plan --grid gemma3-27b --lengths 4k --device nvidia-h200
    """
    made = sources.Sources(
        misses=from_misses,
        spool=spool,
        missed_on=missed_on,
        functions=from_fn,
        files=from_hlo,
    )
    request = SweepRequest(
        points=selection.points(grid, lengths, point, op, made),
        kernels=selection.kernels(kernel, op),
        directions=selection.directions(direction),
        database=db,
        effort=selection.effort(effort, strategy, max_trials),
        allow_nondeterministic=allow_nondeterministic or bool(kernel),
    )
    show_plan(request, device=device, every=every, json=json)


def show_plan(
    request: SweepRequest,
    *,
    device: str | None,
    json: bool,
    every: bool = False,
    how: str = "--all",
) -> None:
    """Prints the plan of ``request`` on ``device`` (None: this machine's).

    Without ``every`` a line stands for the kernels that cannot run there; it says that ``how`` lists them.
    """
    import pandas as pd

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
    guessed = pace is None
    # What history says holds everything; a guess is made of configs and cases.
    seconds = made.estimate_s(SECONDS_PER_CONFIG) if pace is None else made.estimate_s(pace, 0.0)
    said = (
        f"at {SECONDS_PER_CONFIG:g} s a config (a guess)"
        if guessed
        else (f"at {pace:.2g} s a config, as the last sweep here")
    )
    strategy = str(request.effort.strategy) if request.effort else "exhaustive"
    if json:
        totals = {
            "cases": counts.cases,
            "to_try": counts.todo,
            "tried": counts.done,
            "refused": counts.pruned,
            "unsupported_kernels": counts.unsupported_kernels,
            "estimate_s": round(seconds),
            "estimate_from": "guess" if guessed else "history",
        }
        rows = [{key.replace(" ", "_"): value for key, value in row.items()} for row in rows]
        output.emit_json(
            {
                "device": made.device.identity,
                "strategy": strategy,
                "totals": totals,
                "kernels": rows,
            }
        )
        return
    from attn_tune.commands.sweeps.progress import clock

    away = set() if every else selection.absent(request.kernels, made.device)
    away &= {row["kernel"] for row in rows}
    frame = pd.DataFrame([row for row in rows if row["kernel"] not in away], columns=list(rows[0]))
    output.emit_frame(frame, title=f"Plan on {made.device}")
    output.say_absent(away, how)
    print(
        f"{counted(counts.cases, 'case')}, at most {counted(counts.todo, 'config')} to try by strategy {strategy}, "
        f"{counts.done} tried before, {counts.pruned} refused beforehand; "
        f"about {clock(seconds)} {said}"
    )


def _plan(request: SweepRequest, device: str | None) -> "tuple[Plan, float | None]":
    """The plan, and the seconds a config of the last sweep on such a device."""
    from attn_tune.runtime.environments import current_environment

    target, environment = selection.device(device), current_environment()
    try:
        with open_lab(request.database) as database:
            pace = database.seconds_per_config(target)
            return plan_sweep(request, target, environment, database), pace
    except NoDataError:
        if request.database.exists():
            raise
        return plan_sweep(request, target, environment, None), None


def _remark(kernel) -> str:
    if not kernel.runnable:
        return kernel.pruned[0].reason if kernel.pruned else "refused in an earlier run"
    return "" if kernel.todo or kernel.finals else "finished"
