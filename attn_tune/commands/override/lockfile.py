"""``attn-tune override freeze`` and ``check-lockfile``: a job's answers on paper."""

import enum
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attn_tune.commands.shared import options, output, selection
from attn_tune.commands.shared.cases import Cases
from attn_tune.commands.shared.exit_codes import FAILED
from attn_tune.runtime.answer import Rung
from attn_tune.schema import NoDataError, Rule, StorageError, UnsupportedError
from attn_tune.schema.decision import state_words

if TYPE_CHECKING:
    from attn_tune.kernels.lock_check import Checked
    from attn_tune.runtime.answer import Answer

SHOWN = 5


class Required(enum.StrEnum):
    """Choices of ``freeze --require``."""

    TUNED = "tuned"
    EXACT = "exact"


LockfilePath = Annotated[Path, typer.Argument(metavar="LOCKFILE", help="The lockfile.")]


def freeze(
    path: LockfilePath,
    grid: options.Grids = None,
    lengths: options.Lengths = None,
    point: options.Points = None,
    direction: options.Directions = None,
    device: options.DeviceName = None,
    kernel: Annotated[
        str | None,
        typer.Option(
            "--kernel", "-k", metavar="KERNEL", help="For calls that name this kernel themselves."
        ),
    ] = None,
    skip_unsupported: Annotated[
        bool,
        typer.Option("--skip-unsupported", help="Leave out what no kernel can do on the device."),
    ] = False,
    require: Annotated[
        Required | None,
        typer.Option(
            help="Refuse to write unless every answer is so good. tuned: from something that was measured. "
            "exact: at this very problem, or pinned."
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the lockfile that is there.")
    ] = False,
    json: options.Json = False,
) -> None:
    """Write a lockfile: what lookups answer now, for jobs to replay.

    Untuned answers are written too, and counted; --require refuses them with exit code 3.
    A job with ATTN_TUNE_LOCKFILE gets exactly these answers, or an error. It asks for its own problems in its own
    words: freeze from within a job (attn_tune.freeze) where a grid does not name all of them.

    Example: attn-tune override freeze job.lock --grid llama3-8b --device nvidia-h200
    """
    from attn_tune.kernels.dispatch import lookup
    from attn_tune.kernels.locked import freeze_answers

    if path.exists() and not overwrite:
        raise StorageError(f"{path} exists; choose another path, or replace it with --overwrite")
    target = selection.device(device)
    asked = selection.questions(Cases(grid=grid, lengths=lengths, point=point).points(), direction)
    answers, missing = [], []
    for one, way in asked:
        try:
            answers.append(lookup(one.op, one.signature, way, device=target, kernel=kernel))
        except UnsupportedError as error:
            missing.append(str(error))
    if missing and not skip_unsupported:
        more = f"; and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise UnsupportedError(
            f"{missing[0]}{more}; nothing was written: choose other problems, or --skip-unsupported"
        )
    _refuse_lesser(answers, require)
    for text in missing[:SHOWN]:
        output.note(f"left out: {text}")
    if len(missing) > SHOWN:
        output.note(f"left out: {len(missing) - SHOWN} more (--json lists them)")
    written = freeze_answers(path, answers, target, kernel)
    rungs = Counter(str(answer.rung) for answer in answers)
    states = Counter(answer.state for answer in answers if answer.state)
    if json:
        output.emit_json(
            {
                "path": path,
                "digest": written.digest,
                "entries": len(written.entries),
                "left_out": missing,
                "rungs": rungs,
                "states": states,
            }
        )
        return
    kinds = Counter(map(_kind, answers))
    said = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    print(f"{path}: {len(written.entries)} answers for {target} ({said}), {len(missing)} left out")
    print(f"  use it with ATTN_TUNE_LOCKFILE={path.resolve()}")


def _refuse_lesser(answers: "Sequence[Answer]", require: Required | None) -> None:
    """Raises NoDataError if an answer is less than what is required."""
    lesser = [one for one in answers if require and not _is_enough(one, require)]
    if lesser:
        first = lesser[0]
        raise NoDataError(
            f"{len(lesser)} of {len(answers)} answers are not {require}, such as "
            f"{first.op}.{first.direction} {first.signature}, which is {_kind(first)}; nothing was written: "
            "sweep and import these, or ask for less with --require"
        )


def _is_enough(answer: "Answer", require: Required) -> bool:
    if answer.is_miss or answer.state == Rule.PREDICTED:
        return False
    return require is Required.TUNED or answer.rung in (Rung.EXACT, Rung.PINNED)


def _kind(answer: "Answer") -> str:
    """The rung of an answer, and what its row is where that says more."""
    if answer.is_miss:
        return "untuned"
    if answer.state in (Rule.HEURISTIC, Rule.PREDICTED):
        return f"{answer.rung} ({state_words(answer.state)})"
    return str(answer.rung)


def check_lockfile(path: LockfilePath, json: options.Json = False) -> None:
    """Say whether a job here would replay a lockfile exactly.

    Also what lookups would answer without it by now. Exit code 1 if a job would stop at an answer.

    Example: attn-tune override check-lockfile job.lock
    """
    from attn_tune.kernels.lock_check import check_lockfile as check, environment_changes
    from attn_tune.runtime.lockfile import read_lockfile
    from attn_tune.runtime.overlay import current_view, use_lockfile

    lockfile = read_lockfile(path)
    # Beside each answer stands what there would be without any lockfile, the job's own among them.
    use_lockfile(None)
    found = list(check(lockfile, current_view()))
    changes = environment_changes(lockfile)
    broken = [one for one in found if one.problem]
    if json:
        output.emit_json(
            {
                "path": path,
                "digest": lockfile.digest,
                "replays": not broken,
                "entries": [_row(one) for one in found],
                "environment": {name: list(both) for name, both in changes.items()},
            }
        )
    else:
        _say(path, found, changes)
    if broken:
        raise typer.Exit(FAILED)


def _say(path: Path, found: "Sequence[Checked]", changes: Mapping[str, tuple[str, str]]) -> None:
    for one in found:
        where = f"{one.entry.op}.{one.entry.direction} {one.entry.signature}"
        if one.problem:
            print(f"stops: {one.problem}")
        elif one.advice:
            print(f"replays, but {one.advice}: {where}")
        elif one.now:
            print(f"replays; without the lockfile {one.now}: {where}")
    for name, (then, here) in changes.items():
        print(f"{name} was {then or 'unknown'}, is {here or 'unknown'}: no answer changes by it")
    stops = sum(bool(one.problem) for one in found)
    differs = sum(bool(one.now) for one in found)
    print(
        f"{path}: {len(found) - stops} of {len(found)} answers replay exactly; "
        f"{differs} would differ without the lockfile"
    )


def _row(one: "Checked") -> dict[str, Any]:
    entry = one.entry
    return {
        "op": entry.op,
        "direction": entry.direction,
        "signature": entry.signature,
        "asked": entry.asked,
        "device": entry.device,
        "kernel": entry.kernel,
        "config": dict(entry.config),
        "problem": one.problem,
        "now": one.now,
        "advice": one.advice,
    }
