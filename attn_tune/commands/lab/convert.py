"""Write the trials of a lab database in the format of another tool.

t4: a folder with two JSON files a search, its results and its metadata, in the exchange format T4 of Kernel Tuner.

Example: attn-tune lab convert results --to t4 --db lab.db --kernel xla
"""

import enum
import os
import secrets
import shutil
from pathlib import Path

from attn_tune.commands.shared import options, output, selection
from attn_tune.commands.shared.cases import Cases
from attn_tune.commands.shared.database import open_lab
from attn_tune.commands.shared.narrowing import Narrowing
from attn_tune.commands.shared.output_file import check_free, write_text
from attn_tune.schema import NoDataError, StorageError
from attn_tune.schema.words import counted


class LabFormat(enum.StrEnum):
    """Choices of ``--to``: ``t4`` is the exchange format for autotuning results that Kernel Tuner writes."""

    T4 = "t4"


@options.grouped
def command(
    db: options.Database,
    cases: Cases,
    out: Path = options.argument("OUT", "The folder to write, which must not exist."),
    to: LabFormat = options.option(..., "--to", "", "The format of the files."),
    device: options.DeviceName = None,
    json: options.Json = False,
) -> None:
    from attn_tune.integrations.t4 import results

    check_free(out)
    with open_lab(db) as database:
        stored = database.frame("trials")
        narrowing = Narrowing(
            problems=cases.stored_points(stored["signature"]),
            kernels=cases.stored_kernels(stored["kernel"]),
            directions=cases.stored_directions(stored["direction"]),
            device=selection.device(device) if device else None,
        )
        made = results(trial for trial in database.trials() if narrowing.fits(trial))
    if not made.trials:
        why = "; ".join(f"{count} of them {reason}" for reason, count in made.left_out.items())
        raise NoDataError(f"{db} holds no trial that fits and can be written for {to}" + (f"; {why}" if why else ""))
    _write(out, made.files)
    if json:
        output.emit_json(path=out, searches=made.searches, trials=made.trials, left_out=dict(made.left_out))
        return
    output.say(f"{out}: {counted(made.trials, 'trial')} in {counted(made.searches, 'result file')}")
    for reason, count in made.left_out.most_common():
        output.say(f"  left out, {counted(count, 'trial')}: {reason}")


def _write(out: Path, files: dict[str, str]) -> None:
    """Write the folder aside and move it into place, so that it is whole or not there."""
    aside = out.with_name(f".{out.name}.{secrets.token_hex(8)}.new")
    try:
        for name, text in files.items():
            write_text(aside / name, text)
        os.rename(aside, out)
    except OSError as error:
        if isinstance(error, StorageError):
            raise
        raise StorageError(f"{out} cannot be written: {error.strerror or error}") from None
    finally:
        shutil.rmtree(aside, ignore_errors=True)
