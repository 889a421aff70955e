"""Write what lookups answer now to a file that alone may answer, for jobs to replay.

Untuned answers are written too, and counted; --require refuses them with exit code 3.
A job with the file in ATTN_TUNE_OVERRIDES gets exactly these answers, or an error. It asks for its own problems
in its own words: freeze from within a job (attn_tune.freeze) where a grid does not name all of them.

Example: attn-tune override freeze job.json --grid llama3-8b --device nvidia-h200
"""

import enum
import shlex
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from attn_tune.commands.shared import options, output, selection
from attn_tune.commands.shared.cases import Cases
from attn_tune.commands.shared.output_file import check_free
from attn_tune.runtime.lookup.answer import Rung
from attn_tune.runtime.overrides.active import VARIABLE
from attn_tune.schema import NoDataError, Rule, UnsupportedError
from attn_tune.schema.decision import state_words
from attn_tune.schema.words import counted

if TYPE_CHECKING:
    from attn_tune.runtime.lookup.answer import Answer

SHOWN = 5


class Required(enum.StrEnum):
    """Choices of ``--require``: ``tuned`` is an answer that was measured, ``exact`` one for this very problem."""

    TUNED = "tuned"
    EXACT = "exact"


def command(
    path: Path = options.argument("FILE", "The file of overrides."),
    grid: options.Grids = None,
    lengths: options.Lengths = None,
    point: options.Points = None,
    workload: options.Workloads = None,
    direction: options.Directions = None,
    device: options.DeviceName = None,
    kernel: str | None = options.option(None, "--kernel -k", "KERNEL", "The answers to calls that name this kernel."),
    skip_unsupported: bool = options.flag("--skip-unsupported", "Leave out what no kernel can do on the device."),
    require: Required | None = options.option(
        None,
        "--require",
        "",
        "Refuse to write unless every answer is so good. tuned: from something that was measured. "
        "exact: at this very problem, or by an override.",
    ),
    overwrite: options.Overwrite = False,
    json: options.Json = False,
) -> None:
    from attn_tune.ops.registry import get_op
    from attn_tune.runtime.lookup.dispatch import explain, lookup
    from attn_tune.runtime.lookup.question import AUTO
    from attn_tune.runtime.overrides.freeze import freeze_answers

    check_free(path, overwrite=overwrite)
    target = selection.device(device)
    points = Cases(grid=grid, lengths=lengths, point=point, workload=workload).points()
    wanted = selection.directions(direction, [get_op(one.op) for one in points])
    answers, missing = [], []
    for one in points:
        for way in (way for way in wanted if way in one.ways):
            try:
                answers.append(lookup(one.op, one.signature, way, device=target, kernel=kernel))
            except UnsupportedError as error:
                missing.append(str(error))
    if missing and not skip_unsupported:
        more = f"; and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise UnsupportedError(f"{missing[0]}{more}; nothing was written: choose other problems, or --skip-unsupported")
    if lesser := [one for one in answers if require and not _is_enough(one, require)]:
        first = lesser[0]
        raise NoDataError(
            f"{len(lesser)} of {counted(len(answers), 'answer')} {'is' if len(lesser) == 1 else 'are'} not {require}, "
            f"such as {first.op}.{first.direction} {first.signature}, which is {_kind(first)}; nothing was written: "
            "sweep and import these, or ask for less with --require"
        )
    for text in missing[:SHOWN]:
        output.note(f"left out: {text}")
    if len(missing) > SHOWN:
        output.note(f"left out: {len(missing) - SHOWN} more (--json lists them)")
    named = kernel.rpartition("/")[2] if kernel not in (None, AUTO) else ""
    steps = [
        explain(a.op, a.signature, a.direction, device=target, kernel=kernel).unmet for a in (answers if device else ())
    ]
    # What another machine than that of --device cannot ask of itself.
    if unmet := [step.row.kernel for step in steps if step and step.row]:
        names = ", ".join(sorted(set(unmet)))
        output.note(
            f"{len(unmet)} of {counted(len(answers), 'answer')} would be of {names} on {target}: this machine lacks "
            "what these kernels need, so freeze on one like those of the job"
        )
    written = freeze_answers(path, ((named, target, answer) for answer in answers))
    if json:
        result = {"path": path, "digest": written.digest, "entries": len(written.entries)}
        rungs = Counter(str(answer.rung) for answer in answers)
        states = Counter(answer.state for answer in answers if answer.state)
        output.emit_json(**result, left_out=missing, rungs=rungs, states=states)
        return
    kinds = Counter(map(_kind, answers))
    summary = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    output.say(f"{path}: {counted(len(written.entries), 'answer')} for {target} ({summary}), {len(missing)} left out")
    print(f"  use it with export {VARIABLE}={shlex.quote(str(path.resolve()))}")


def _is_enough(answer: "Answer", require: Required) -> bool:
    if answer.is_miss or answer.state == Rule.PREDICTED:
        return False
    return require is Required.TUNED or answer.rung in (Rung.EXACT, Rung.OVERRIDE)


def _kind(answer: "Answer") -> str:
    """The rung of an answer, and what its row is where that says more."""
    if answer.is_miss:
        return "untuned"
    if answer.state in (Rule.HEURISTIC, Rule.PREDICTED):
        return f"{answer.rung} ({state_words(answer.state)})"
    return str(answer.rung)
