"""Take entries out of a file.

Example: attn-tune override remove 3f2a9c01
"""

from typing import TYPE_CHECKING

from attn_tune.commands.override.entries import File, change_file
from attn_tune.commands.shared import options, output
from attn_tune.schema import NoDataError

if TYPE_CHECKING:
    from attn_tune.packs.override_entries import Entry


def command(
    ids: list[str] = options.argument("ID", "As 'attn-tune override list' shows."),
    file: File = None,
    json: options.Json = False,
) -> None:
    def without(old: "tuple[Entry, ...]") -> "tuple[Entry, ...]":
        known = sorted({entry.id for entry in old})
        for one in ids:
            if one not in known:
                has = ", ".join(known) or "none"
                raise NoDataError(f"there is no entry {one!r} in the file; it has {has}")
        return tuple(entry for entry in old if entry.id not in ids)

    path, after = change_file(file, without)
    if json:
        output.emit_json(path=path, removed=ids, entries=len(after))
    else:
        print(f"{path}: {len(ids)} removed, {len(after)} left")
