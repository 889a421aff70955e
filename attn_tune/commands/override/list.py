"""List the entries that this user's jobs use, those that packs carry too.

Jobs leave out what cannot be read; here it is named, and the exit status is 5.

Example: attn-tune override list
"""

from pathlib import Path

import typer

from attn_tune.commands.override.entries import as_json, line
from attn_tune.commands.shared import options, output
from attn_tune.commands.shared.exit_codes import INTEGRITY


def command(
    file: Path | None = options.option(None, "--file", "PATH", "Only this file."),
    json: options.Json = False,
) -> None:
    from attn_tune.packs.override_files import read_overrides
    from attn_tune.runtime.active.layers import current_view
    from attn_tune.runtime.overrides.active import Overrides

    found = Overrides([read_overrides(file)]) if file else current_view().overrides
    use = [entry for each in found.files for entry in each.entries if not entry.never]
    entries, only = [*use, *found.never], [each.path for each in found.only]
    broken = [text for each in found.files for text in (*each.ignored, each.broken) if text]
    if json:
        output.emit_json(entries=[as_json(one) for one in entries], only=only, broken=broken)
    else:
        for entry in entries:
            output.say(f"{line(entry)}  ({entry.origin})")
        output.say(f"Only {' and '.join(only)} may answer." if only else f"Overrides: {len(entries)}.")
    for text in broken:
        output.note(f"error: {text}")
    if broken:
        raise typer.Exit(INTEGRITY)
