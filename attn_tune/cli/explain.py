"""``attn-tune explain``."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attn_tune.cli import choose, options, sink
from attn_tune.cli.lab import open_lab
from attn_tune.schema import AttnTuneError
from attn_tune.schema.words import config_words, duration

if TYPE_CHECKING:
    from attn_tune.runtime.explain import Explanation
    from attn_tune.schema import Decision, Device


def explain(
    point: Annotated[
        str, typer.Argument(help="A grid point such as llama3-8b/4x4k, or a signature.")
    ],
    db: options.Database,
    grid: options.PointGrids = None,
    direction: options.Directions = None,
    device: options.DeviceName = None,
    every: options.All = False,
    json: options.Json = False,
) -> None:
    """Say which kernel and config a call would get here, and why.

    Calls read packs, never the lab database: where the database of --db decided otherwise, that is said too.

    Example: attn-tune explain llama3-8b/4x4k --direction bwd --device nvidia-h200
    """
    from attn_tune.kernels import dispatch

    asked = choose.signature(point, grid)
    target = choose.device(device)
    found = {
        way: dispatch.explain(asked.op, asked.signature.text, way, device=target)
        for way in choose.directions(direction)
    }
    unshipped = _unshipped(db, found, target)
    if json:
        sink.emit_json(
            {
                way: {**one.to_dict(), "unshipped": _row(unshipped.get(way))}
                for way, one in found.items()
            }
        )
        return
    print("\n\n".join(one.text(every=every).rstrip() for one in found.values()))
    for way, decision in unshipped.items():
        time = f", {duration(decision.median_ns)}" if decision.median_ns else ""
        print(
            f"\n{db} decided {way} otherwise: {decision.kernel} {config_words(decision.config)} "
            f"({decision.rule}{time}). Calls read packs, not the lab database."
        )
    if unshipped:
        print(f"To use it:\n{steps_to_ship(db)}")


def steps_to_ship(db: Path) -> str:
    """The commands that make the user's jobs find what ``db`` decided."""
    return f"  attn-tune export my-pack --db {shlex.quote(str(db))}\n  attn-tune import my-pack"


def _unshipped(
    db: Path, found: "dict[str, Explanation]", device: "Device"
) -> "dict[str, Decision]":
    """The winners in ``db``, by direction, that are not what a call gets on ``device``."""
    if not db.exists() and db == options.default_database():
        return {}
    others = {}
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
    except AttnTuneError as error:
        # The lookup was explained; what it does not read is an extra.
        sink.note(f"the lab database was not asked: {error}")
    return others


def _row(decision: "Decision | None") -> dict[str, object] | None:
    if decision is None:
        return None
    return {
        "kernel": decision.kernel,
        "config": dict(decision.config),
        "rule": str(decision.rule),
        "median_ns": decision.median_ns,
    }
