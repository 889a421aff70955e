"""Show the kernel and config that a call would get here, and the steps that lead to them.

A call that is refused, or that no kernel can do here, is explained too; the exit code is then 1.
Calls read packs, never the lab database: what the database of --db decided is shown too, where it differs in full.

Example: attn-tune explain llama3-8b/4x4k --direction bwd --device nvidia-h200
"""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from attn_tune.commands.shared import options, output, selection
from attn_tune.commands.shared.database import open_lab
from attn_tune.commands.shared.exit_codes import FAILED
from attn_tune.commands.shared.shipping import gate_lines, steps_to_ship
from attn_tune.schema import AttnTuneError, Grade
from attn_tune.schema.words import config_words, duration

if TYPE_CHECKING:
    from attn_tune.db import Objection
    from attn_tune.runtime.lookup.explain import Explanation
    from attn_tune.schema import Decision, Device

_AGREES = "agrees{what}: what it found best is what calls get."
_AGREES_BUT_STALE = (
    "has the same config{what}, but it is stale there too: the kernel's source here is not the one that was measured. "
    "Sweep again, with --no-resume where it was swept before."
)


def command(
    point: options.Point,
    db: options.DatabaseIfAny,
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
    # A direction that is asked for is explained, also one that the grid has no use for.
    ways = selection.directions(direction or asked.ways, [get_op(asked.op)])
    found = {way: dispatch.explain(asked.op, asked.signature.text, way, device=target) for way in ways}
    decided = _decided(db, found, target)
    unshipped = {way: one for way, one in decided.items() if not _is_answer(one, found[way])}
    if json:
        output.emit_json(
            **{way: {**one.to_dict(), "unshipped": _row(unshipped.get(way))} for way, one in found.items()}
        )
    else:
        _say(db, found, decided, unshipped, every=every)
    if any(one.answer is None for one in found.values()):
        raise typer.Exit(FAILED)


def _say(
    db: Path | None,
    found: "dict[str, Explanation]",
    decided: "dict[str, Decision]",
    unshipped: "dict[str, Decision]",
    *,
    every: bool,
) -> None:
    """Print the steps of each direction, and how the lab database ``db`` decided."""
    print("\n\n".join(one.text(every=every, width=output.width()).rstrip() for one in found.values()))
    # One process has the same files of overrides for all directions.
    only = next((one for one in found.values() if one.only_by), None)
    for way, decision in unshipped.items():
        words = [str(decision.rule), *([duration(decision.median_ns)] if decision.median_ns else [])]
        words += [Grade.STALE] if _is_stale(decision) else []
        print()
        output.say(
            f"{db} decided {way} otherwise: {decision.kernel} {config_words(decision.config)} "
            f"({', '.join(words)}). {_why_not(found[way])}"
        )
    _say_likewise(db, {way: one for way, one in decided.items() if way not in unshipped}, found)
    if db and unshipped:
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
        for line in gate_lines(_objections(db, decisions), len(decisions)):
            output.say(line)


def _say_likewise(db: Path | None, decided: "dict[str, Decision]", found: "dict[str, Explanation]") -> None:
    """Say that ``db`` decided as calls are answered; what is stale it did not decide for the calls of here."""
    stale = [way for way, one in decided.items() if _is_stale(one)]
    fresh = [way for way in decided if way not in stale]
    for ways, words in ((fresh, _AGREES), (stale, _AGREES_BUT_STALE)):
        if ways:
            what = "" if len(ways) == len(found) else f" on {' and '.join(ways)}"
            print()
            output.say(f"{db} {words.format(what=what)}")


def _is_stale(decision: "Decision") -> bool:
    """Whether the source of its kernel here is not the one that was measured."""
    from attn_tune.kernels.staleness import is_stale

    return is_stale(decision.kernel, decision.environment) is True


def _why_not(one: "Explanation") -> str:
    """The reason why a call does not get what the lab database decided."""
    if one.only_by:
        return f"The overrides in {one.only_by} answer first, and they alone."
    if one.override_ended_by:
        return "An override answers first."
    return "Calls read packs, not the lab database."


def _decided(db: Path | None, found: "dict[str, Explanation]", device: "Device") -> "dict[str, Decision]":
    """The winners in ``db`` on ``device``, by direction."""
    if db is None or (db == options.database_of_home() and not db.exists()):
        return {}
    decided = {}
    try:
        with open_lab(db) as database:
            for way, one in found.items():
                for decision in database.decisions(
                    signature=one.signature, direction=way, device=device.variant, rank=0
                ):
                    # Of several boards of one name, the one that decided otherwise.
                    if way not in decided or not _is_answer(decision, one):
                        decided[way] = decision
    except AttnTuneError as error:
        # The lookup was explained; what it does not read is an extra.
        output.note(f"the lab database was not asked: {error}")
    return decided


def _is_answer(decision: "Decision", one: "Explanation") -> bool:
    """Whether a call gets what was decided."""
    answer = one.answer
    return answer is not None and (f"{one.op}/{answer.kernel}", answer.config) == (decision.kernel, decision.config)


def _objections(db: Path, decisions: "list[Decision]") -> "list[Objection]":
    """The objections of the release gate to ``decisions``."""
    from attn_tune.db import objections_to

    with open_lab(db) as database:
        return objections_to(database, decisions)


def _row(decision: "Decision | None") -> dict[str, object] | None:
    if decision is None:
        return None
    return {
        "kernel": decision.kernel,
        "config": dict(decision.config),
        "rule": str(decision.rule),
        "median_ns": decision.median_ns,
        "stale": _is_stale(decision),
    }
