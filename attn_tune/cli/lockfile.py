"""``attn-tune freeze`` and ``check-lockfile``: a job's answers on paper."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attn_tune.cli import choose, options, sink
from attn_tune.cli.exit_codes import FAILED
from attn_tune.schema import StorageError, UnsupportedError

if TYPE_CHECKING:
    from attn_tune.kernels.lock_check import Checked

SHOWN = 5

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
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the lockfile that is there.")
    ] = False,
    json: options.Json = False,
) -> None:
    """Write a lockfile: what lookups answer now, for jobs to replay.

    A job with ATTN_TUNE_LOCKFILE gets exactly these answers, or an error. It asks for its own problems in its own
    words: freeze from within a job (attn_tune.freeze) where a grid does not name all of them.

    Example: attn-tune freeze job.lock --grid llama3-8b --device nvidia-h200
    """
    from attn_tune.kernels.dispatch import lookup
    from attn_tune.kernels.locked import freeze_answers

    if path.exists() and not overwrite:
        raise StorageError(f"{path} exists; choose another path, or replace it with --overwrite")
    target = choose.device(device)
    asked = [
        (p, way)
        for p in choose.points(grid, lengths, point)
        for way in choose.directions(direction)
    ]
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
    for text in missing[:SHOWN]:
        sink.note(f"left out: {text}")
    if len(missing) > SHOWN:
        sink.note(f"left out: {len(missing) - SHOWN} more (--json lists them)")
    written = freeze_answers(path, answers, target, kernel)
    rungs = Counter(str(answer.rung) for answer in answers)
    if json:
        sink.emit_json(
            {
                "path": path,
                "digest": written.digest,
                "entries": len(written.entries),
                "left_out": missing,
                "rungs": rungs,
            }
        )
        return
    said = ", ".join(f"{count} {rung}" for rung, count in sorted(rungs.items()))
    print(f"{path}: {len(written.entries)} answers for {target} ({said}), {len(missing)} left out")
    print(f"  use it with ATTN_TUNE_LOCKFILE={path.resolve()}")


def check_lockfile(path: LockfilePath, json: options.Json = False) -> None:
    """Say whether a job here would replay a lockfile exactly.

    Also what lookups would answer without it by now. Exit code 1 if a job would stop at an answer.

    Example: attn-tune check-lockfile job.lock
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
        sink.emit_json(
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
