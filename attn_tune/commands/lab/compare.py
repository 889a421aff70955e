"""Compare how fast the winners of two sweeps or packs are: better, worse or undecided, problem by problem.

A side is a lab database, a pack (a folder or an .atpack file) or a pack's name. B is judged against A by the rule of
decisions: 1 %, half a microsecond, and a chance of 1 % that any verdict is false. 'attn-tune pack diff' lists instead
what two packs decide otherwise, all kernels and quarantine lists, on any evidence.

Example: attn-tune lab compare host-a.db host-b.db --fail-on worse

Example: attn-tune lab compare h200-1.atpack h200-2.atpack --format markdown
"""

import contextlib
import enum
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from attn_tune.commands.shared import options, output, selection
from attn_tune.commands.shared.cases import Cases
from attn_tune.commands.shared.exit_codes import DIFFERS
from attn_tune.commands.shared.output_file import check_free, write_text
from attn_tune.commands.shared.sides import narrowed, open_side
from attn_tune.schema import NoDataError, UsageError, config_to_json

if TYPE_CHECKING:
    from attn_tune.db import Compared, Side, SidesCompared


class FailOn(enum.StrEnum):
    """Choices of ``--fail-on``.

    ``worse``: a winner of B is slower. ``missing``: a problem has a winner in A alone. ``changed``: B chose another
    kernel or config for a problem. ``shifted``: the programs that are the same in both take longer in B as a whole.
    """

    WORSE = "worse"
    MISSING = "missing"
    CHANGED = "changed"
    SHIFTED = "shifted"


@options.grouped
def command(
    cases: Cases,
    before: str = options.argument("A", "What B is compared with: a database, a pack, or a pack's name."),
    after: str = options.argument("B", "Another one."),
    device: options.DeviceName = None,
    margin: float = options.option(
        1.0,
        "--margin",
        "PERCENT",
        "Differences up to this are none. At least 1, the bound of decisions.",
        min=1.0,
        max=1000.0,
    ),
    fail_on: list[FailOn] | None = options.option(
        None,
        "--fail-on",
        "WHAT",
        "Exit with 6 if there is a verdict 'worse', a problem that B lacks (missing), another choice (changed), or if "
        "the programs of both take longer in B as a whole, by more than --margin (shifted). Repeatable.",
    ),
    fmt: options.Format = options.option(options.Format.TABLE, "--format -f", "", "The format of the answer."),
    html: Path | None = options.option(None, "--html", "FILE", "Also write a page to this file."),
    overwrite: options.Overwrite = False,
    every: bool = options.flag("--all", "In the table also the undecided problems, and those of one side."),
    json: options.Json = False,
) -> None:
    from attn_tune.db import compare_sides, find_shifts
    from attn_tune.reports import comparison

    fmt = options.Format.JSON if json else fmt
    if html is not None:
        check_free(html, overwrite=overwrite)
    elif overwrite:
        raise UsageError("--overwrite needs --html FILE")
    with contextlib.ExitStack() as stack:
        sides = (open_side(before, stack), open_side(after, stack))
        (a, b), narrowing = narrowed(sides, cases, selection.device(device) if device else None)
        if not a.decisions and not b.decisions:
            raise NoDataError(f"neither {before} nor {after} holds a decision that fits")
        found = compare_sides(a, b, margin=margin / 100, shifts=find_shifts(*sides))
    if not any(row.a and row.b for row in found.rows):
        raise NoDataError(f"nothing to compare: no problem has a winner in both, {_devices(a)} and {_devices(b)}")
    names = {**selection.point_names(cases.grid), **(narrowing.problems or {})}
    frame = comparison.frame([_row(row) for row in found.rows], names)
    summary = _summary(a, b, found, margin / 100)
    if html is not None:
        from attn_tune.reports import comparison_page

        write_text(html, comparison_page.page(frame, summary))
    match fmt:
        case options.Format.JSON:
            output.emit_json(**summary, rows=frame)
        case options.Format.CSV:
            output.emit_formatted(frame, fmt)
        case options.Format.MARKDOWN:
            output.emit_text(comparison.markdown(frame, summary))
        case options.Format.TABLE:
            shown = frame if every else comparison.decided(frame)
            if not shown.empty:
                output.emit_frame(comparison.for_people(shown))
            for line in comparison.lines(summary):
                output.say(line)
            if len(shown) < len(frame):
                output.say("--all lists the problems that are undecided or have one side")
    if fired := [one for one in dict.fromkeys(fail_on or ()) if _differs(found, one, margin / 100)]:
        output.note(f"exit code {int(DIFFERS)}: --fail-on {', '.join(fired)}")
        raise typer.Exit(DIFFERS)


def _differs(found: "SidesCompared", what: FailOn, margin: float) -> bool:
    from attn_tune.db import Verdict

    match what:
        case FailOn.WORSE:
            return any(row.verdict is Verdict.WORSE for row in found.rows)
        case FailOn.MISSING:
            return any(row.verdict is Verdict.ONLY_A for row in found.rows)
        case FailOn.CHANGED:
            return any(row.changed for row in found.rows)
        case FailOn.SHIFTED:
            return any(shift.is_known and shift.ratio > 1 + margin for shift in found.shifts)


def _devices(side: "Side") -> str:
    """The devices of a side, with the digests that tell equal names apart."""
    found = dict.fromkeys(f"{d.device} ({d.device.digest})" for d in side.decisions)
    return f"{side.name} is of {', '.join(found)}" if found else f"{side.name} has no decision that was asked for"


def _row(row: "Compared") -> dict[str, Any]:
    """A row as plain data."""
    one = row.one
    both: dict[str, Any] = {}
    for side, decision in (("a", row.a), ("b", row.b)):
        both[f"{side}_kernel"] = decision.kernel if decision else None
        both[f"{side}_config"] = config_to_json(decision.config) if decision else None
    return {
        "verdict": str(row.verdict),
        "op": one.op,
        "signature": one.signature.text,
        "direction": one.direction,
        "device": str(one.device),
        "a_ns": row.a_ns,
        "b_ns": row.b_ns,
        "b_over_a": row.ratio,
        "low": row.low,
        "high": row.high,
        "chance": row.chance,
        "basis": str(row.basis),
        "changed": row.changed,
        "reason": row.reason,
        "needs": row.needs,
        "bound": row.bound,
        **both,
    }


def _summary(a: "Side", b: "Side", found: "SidesCompared", margin: float) -> dict[str, Any]:
    """Everything about the comparison that is not of one problem, as plain data."""
    from attn_tune.db import Verdict
    from attn_tune.db.compare import verdicts
    from attn_tune.schema.decision import MIN_GAIN_NS

    counts = Counter(row.verdict for row in found.rows)
    changed = Counter(row.changed for row in found.rows)
    return {
        "a": {"name": a.name, "kind": a.kind},
        "b": {"name": b.name, "kind": b.kind},
        "rule": {
            "margin": margin,
            "margin_ns": MIN_GAIN_NS,
            "level": verdicts.WIN_ALPHA,
            "correction": "holm",
            "confidence": verdicts.CONFIDENCE,
        },
        "counts": {str(verdict): counts[verdict] for verdict in Verdict},
        "changed": {what: changed[what] for what in ("kernel", "config")},
        "mean": found.mean,
        "shifts": [
            {
                "device": str(s.device),
                "programs": s.programs,
                "ratio": s.ratio,
                "noise": s.noise,
                "is_known": s.is_known,
            }
            for s in found.shifts
        ],
    }
