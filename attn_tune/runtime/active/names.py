"""Packs by name: those that calls find here."""

import os
from pathlib import Path

from attn_tune.packs.archive import SUFFIX
from attn_tune.packs.reader import Pack, open_pack, read_pack
from attn_tune.runtime.active.sources import SHIPPED, locations
from attn_tune.schema.errors import AttnTuneError, StorageError, UsageError, near_names
from attn_tune.schema.logs import log


def known_packs() -> dict[str, Path]:
    """The packs that calls find here, by name, in the order they are asked: the user's, those of wheels, our own."""
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

    Where a bare name is both, a warning says that the path is taken. A path with a separator, ``./NAME``, is no name.

    Raises:
      UsageError: ``text`` is empty.
      StorageError: ``text`` is a bare name without a suffix, and nothing is called so.
    """
    if not text.strip():
        raise UsageError(f"a pack is a folder, an {SUFFIX} file or a name that 'attn-tune doctor' prints, got {text!r}")
    path = Path(text)
    if path.suffix == SUFFIX or path.name != text:
        return path
    packs = known_packs()
    if path.exists():
        hidden = packs.get(text)
        if hidden is not None and not hidden.samefile(path):
            log.warning("%s is the one in this folder, ./%s, not the pack of that name at %s", text, text, hidden)
        return path
    if text not in packs and path.suffix:
        return path  # a file, though not there: its reader says so
    if text not in packs:
        near = near_names(text, packs) or f"names are {', '.join(packs)}"
        raise StorageError(f"there is no pack at {text}, and none of that name is found here; {near}")
    return packs[text]


def read_named_pack(text: str) -> Pack:
    """The pack called ``text``, as ``pack_path``; one that attn-tune ships needs no signature.

    Raises:
      UsageError, StorageError: as ``pack_path``.
      StorageError, IntegrityError: it cannot be read.
    """
    path = pack_path(text)
    is_own = str(path) != text and path.parent == SHIPPED
    return read_pack(path, signed=False if is_own else None)
