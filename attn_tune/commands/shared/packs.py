"""Packs as a command line names them: a path, or the name of a pack that calls find here."""

import os
from pathlib import Path

from attn_tune.schema.errors import AttnTuneError, StorageError, near_names


def known_packs() -> dict[str, Path]:
    """The packs that calls find here, by name, in the order they are asked: the user's, those of wheels, our own."""
    from attn_tune.packs.reader import open_pack
    from attn_tune.runtime.active.sources import locations

    found = locations(os.environ)
    named: dict[str, Path] = {}
    for path in map(Path, (*found.user, *found.wheels, *found.own)):
        try:
            named.setdefault(open_pack(path, signed=False).name, path)
        except AttnTuneError:  # a command that names its path says so
            continue
    return named


def pack_path(text: str) -> Path:
    """The pack called ``text``: what is there, else a pack of ``known_packs``.

    Raises:
      StorageError: ``text`` is a bare name, and nothing is called so.
    """
    path = Path(text)
    if path.exists() or path.suffix or len(path.parts) != 1:
        return path
    packs = known_packs()
    if text not in packs:
        near = near_names(text, packs) or f"names are {', '.join(packs)}"
        raise StorageError(f"there is no pack at {text}, and none of that name is found here; {near}")
    return packs[text]
