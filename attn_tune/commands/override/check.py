"""Check whether each entry of a file can act here: whether a job would replay a frozen one exactly.

Also what lookups would answer without the file by now. Exit code 1 if an entry cannot act.

Example: attn-tune override check job.json
"""

from pathlib import Path

import typer

from attn_tune.commands.override.entries import as_json, line
from attn_tune.commands.shared import options, output
from attn_tune.commands.shared.exit_codes import FAILED
from attn_tune.schema.words import counted


def command(
    path: Path = options.argument("FILE", "The file of overrides."),
    json: options.Json = False,
) -> None:
    from attn_tune.packs.override_files import read_overrides
    from attn_tune.runtime.active.settings import current_settings
    from attn_tune.runtime.overrides.check import check_overrides

    file = read_overrides(path)
    found = list(check_overrides(file, current_settings()))
    stops = sum(bool(one.problem) for one in found)
    if json:
        rows = [{**as_json(one.entry), "problem": one.problem, "now": one.now, "advice": one.advice} for one in found]
        result = {"path": path, "digest": file.digest, "only": file.only, "holds": not stops}
        output.emit_json(**result, frozen=file.frozen, entries=rows)
    else:
        for one in found:
            if one.problem:
                output.say(f"stops: {one.problem}: {line(one.entry)}")
            elif one.advice or one.now:
                output.say(f"holds; {one.advice or f'without it {one.now}'}: {line(one.entry)}")
        differs = sum(bool(one.now) for one in found)
        entries = counted(len(found), "entry", "entries")
        output.say(f"{path}: {len(found) - stops} of {entries} hold; {differs} would differ without the file")
    if stops:
        raise typer.Exit(FAILED)
