"""Packs in hand: the argument that names one, and its reading without a check of signatures."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from attn_tune.commands.shared import options

if TYPE_CHECKING:
    from attn_tune.packs.reader import Pack

PackPath = Annotated[Path, options.argument("PACK", "A pack: a folder or an .atpack file.")]


def read(path: Path) -> "Pack":
    """Read the pack at ``path``."""
    from attn_tune.packs.reader import read_pack

    return read_pack(path, signed=False)


def read_files(path: Path) -> "tuple[Mapping[str, bytes], Pack]":
    """The files of the pack at ``path`` and the pack, of one reading."""
    from attn_tune.packs import archive
    from attn_tune.packs.reader import pack_from_files

    files = archive.read_files(path)
    return files, pack_from_files(files, str(path))
