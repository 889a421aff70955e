"""Show the kernel and config that a call would get here, and the steps that lead to them.

A call that is refused is explained too, with exit code 0.
Calls read packs, never the lab database: a decision of the database of --db that differs is shown too.

Example: attn-tune explain llama3-8b/4x4k --direction bwd --device nvidia-h200
"""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from attn_tune.commands.shared import options, output, selection
from attn_tune.commands.shared.database import open_lab
from attn_tune.commands.shared.shipping import gate_lines, steps_to_ship
from attn_tune.schema import AttnTuneError
from attn_tune.schema.words import config_words, duration

if TYPE_CHECKING:
    from attn_tune.db import Objection
    from attn_tune.runtime.lookup.explain import Explanation
    from attn_tune.schema import Decision, Device


def command(
    point: options.Point,
    db: options.Database,
    grid: options.PointGrids = None,
    workload: options.Workload = None,
    direction: options.Directions = None,
    device: options.DeviceName = None,
    every: options.All = False,
    json: options.Json = False,
) -> None:
    from attn_tune.ops.registry import get_op
    from attn_tune.runtime.lookup import dispatch

    asked = selection.signature(point, grid, workload)
    target = selection.device(device)
    found = {
        way: dispatch.explain(asked.op, asked.signature.text, way, device=target)
        for way in selection.directions(direction, [get_op(asked.op)])
    }
    unshipped, objections = _unshipped(db, found, target)
    if json:
        output.emit_json(
            **{way: {**one.to_dict(), "unshipped": _row(unshipped.get(way))} for way, one in found.items()}
        )
        return
    print("\n\n".join(one.text(every=every, width=output.width()).rstrip() for one in found.values()))
    # One process has the same files of overrides for all directions.
    only = next((one for one in found.values() if one.only_by), None)
    for way, decision in unshipped.items():
        time = f", {duration(decision.median_ns)}" if decision.median_ns else ""
        print()
        output.say(
            f"{db} decided {way} otherwise: {decision.kernel} {config_words(decision.config)} "
            f"({decision.rule}{time}). {_why_not(found[way])}"
        )
    if unshipped:
        decisions = list(unshipped.values())
        # What is exported answers only once no override does.
        ends = [only.only_ended_by] if only else [found[w].override_ended_by for w in unshipped]
        ends = [f"  {end}" for end in dict.fromkeys(ends) if end]
        print("To use it:", *ends, *steps_to_ship(db, decisions), sep="\n")
        if only:
            print(
                "Then, to have such a file again, freeze all that the job asks once more:\n"
                f"  attn-tune override freeze {shlex.quote(only.only_by)} --overwrite --grid GRID\n"
                "  or attn_tune.freeze at the end of the job"
            )
        for line in gate_lines(objections, len(decisions)):
            output.say(line)


def _why_not(one: "Explanation") -> str:
    """The reason why a call does not get what the lab database decided."""
    if one.only_by:
        return f"The overrides in {one.only_by} answer first, and they alone."
    if one.override_ended_by:
        return "An override answers first."
    return "Calls read packs, not the lab database."


def _unshipped(
    db: Path, found: "dict[str, Explanation]", device: "Device"
) -> "tuple[dict[str, Decision], list[Objection]]":
    """The winners in ``db``, by direction, that a call does not get on ``device``; the gate's objections to them."""
    if not db.exists() and db == options.default_database():
        return {}, []
    from attn_tune.db import objections_to

    others, objections = {}, []
    try:
        with open_lab(db) as database:
            for way, one in found.items():
                for decision in database.decisions(
                    signature=one.signature, direction=way, device=device.variant, rank=0
                ):
                    answer = one.answer
                    if answer is None or (f"{one.op}/{answer.kernel}", answer.config) != (
                        decision.kernel,
                        decision.config,
                    ):
                        others[way] = decision
            objections = objections_to(database, list(others.values()))
    except AttnTuneError as error:
        # The lookup was explained; what it does not read is an extra.
        output.note(f"the lab database was not asked: {error}")
    return others, objections


def _row(decision: "Decision | None") -> dict[str, object] | None:
    if decision is None:
        return None
    return {
        "kernel": decision.kernel,
        "config": dict(decision.config),
        "rule": str(decision.rule),
        "median_ns": decision.median_ns,
    }
