"""A sweep that only compiles, for a device that need not be here; stored under that device."""

import shlex
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from attn_tune.commands.shared import output, selection
from attn_tune.commands.shared.database import open_lab
from attn_tune.commands.sweeps.database_sweep import Run, SweepRequest, record_run, say_left_out
from attn_tune.schema import Environment, Trial, UsageError

if TYPE_CHECKING:
    from attn_tune.db import Database
    from attn_tune.tuner.offline.compile_sweep import Past
    from attn_tune.tuner.offline.target import Target
    from attn_tune.tuner.plan.plan import Plan
    from attn_tune.tuner.run.progress import Event

# The largest backward blocks take half a minute of a core, and the cores may be shared.
COMPILE_LIMIT_S = 300.0


def for_target(request: SweepRequest, name: str) -> "tuple[SweepRequest, Target]":
    """``request`` with the kernels that can be compiled for the target called ``name``, and that target.

    Raises:
      UsageError: there is no such target, or none of the kernels can.
    """
    from attn_tune.tuner.offline.target import find_target

    target = find_target(name)
    fit = tuple(spec for spec in request.kernels if spec.backend in target.backends)
    if not fit:
        backends = ", ".join(target.backends)
        raise UsageError(f"none of the chosen kernels can be compiled for {target}: it takes kernels in {backends}")
    return replace(request, kernels=fit), target


def plan_target(
    request: SweepRequest, target: "Target", environment: Environment, database: "Database | None"
) -> "Plan":
    """The plan of ``request`` on ``target``; with a database, without what it holds of an equal compiler."""
    from attn_tune.tuner.plan.planner import make_plan

    say_left_out(request, target.device)
    return make_plan(
        request.points,
        kernels=request.kernels,
        device=target.device,
        environment=environment,
        directions=request.directions,
        effort=request.effort,
        allow_nondeterministic=request.allow_nondeterministic,
        hints=request.hints,
        measured=lambda kernel, direction, signature, env: (
            database.measured(kernel, direction, signature, target.device, env) if database else {}
        ),
    )


def run_target(
    request: SweepRequest,
    target: "Target",
    *,
    watch: "Callable[[Event], None]",
    stop: threading.Event,
) -> Run:
    """Compile the candidates of ``request``; every trial is durable before the next one is taken.

    Raises:
      UsageError: the target's compiler is not installed.
      CompilerError: nothing can be compiled.
    """
    from attn_tune.commands.sweeps.tally import Tally
    from attn_tune.devices.environments import current_environment
    from attn_tune.tuner.offline.compile_sweep import sweep_target
    from attn_tune.tuner.offline.compilers.pool import CompilePool
    from attn_tune.tuner.plan.strategies.effort import Effort
    from attn_tune.tuner.protocol import Limits
    from attn_tune.tuner.run.compile_ahead import usable_cores

    environment = target.environment(current_environment())
    strategy = (request.effort or Effort()).search
    limits = Limits(compile=COMPILE_LIMIT_S)
    with open_lab(request.database, create=True) as database:
        known = database if request.resume else None
        plan = plan_target(request, target, environment, known)
        with CompilePool(target, processes=usable_cores(), limits=limits) as pool:
            events = sweep_target(
                plan,
                pool,
                strategy=strategy,
                past=_past(known),
                budget_s=request.budget_s,
                stop=stop,
            )
            tally = Tally(compiles_only=True)
            return record_run(database, target.device, environment, events, tally=tally, watch=watch)


def show_target(outcome: Run, request: SweepRequest, target: "Target", json: bool) -> bool:
    """Print the configs that fit and their predicted times; return whether any fits."""
    from attn_tune.reports import frames, predictions

    wanted = {p.signature.text: selection.brief(p.name) for p in request.points}
    with open_lab(request.database) as database:
        trials = database.frame("trials", device=target.device)
        own = database.frame("trials", run=outcome.run_id)
    counts = frames.status_counts(own)
    trials = trials.loc[trials["signature"].isin(list(wanted))]
    fits = predictions.fits(trials, wanted)
    ranking = predictions.ranking(trials, wanted, best=1)
    does_fit = bool(len(fits) and fits["fit"].sum())
    if json:
        output.emit_json(
            ending=outcome.ending,
            database=str(request.database),
            run=outcome.run_id,
            device=target.device.identity,
            trials=outcome.trials,
            statuses=counts,
            fits=fits,
            predicted=ranking,
        )
        return does_fit
    if does_fit:
        output.emit_frame(fits, title=f"What fits {target}")
    elif len(own):
        # Those that were compiled say more than those that no kernel takes.
        first = own.loc[own["reason"] != ""].sort_values("compile_ms").head(1).to_dict("records")
        why = f": {first[0]['kernel']} {first[0]['status']}, {first[0]['reason']}" if first else ""
        output.say(f"No config fits {target}{why}")
    if not ranking.empty:
        output.emit_frame(ranking.drop(columns=["signature"]), title=f"Predicted on {target}")
    if outcome.ending != "finished":
        output.say("Not everything was compiled. What was is stored; the same command continues from here.")
    place = shlex.quote(str(request.database))
    print(f"Nothing was measured. Next:\n  attn-tune report --db {place}")
    return does_fit


def _past(database: "Database | None") -> "Past":
    """The last trial of each config in earlier runs in an equal environment that has a predicted time."""

    def past(kernel, case) -> dict[tuple[str, str], Trial]:
        if database is None:
            return {}
        found = database.trials(kernel=kernel.kernel.id, direction=case.direction, signature=case.signature)
        own = (t for t in found if t.environment == kernel.environment)
        last = {(t.part, t.config_digest): t for t in own}
        return {key: t for key, t in last.items() if t.prediction is not None}

    return past
