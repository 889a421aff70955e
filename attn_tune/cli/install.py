"""Puts a pack into the folder where every job of this user finds it."""

import os
import shutil
import tempfile
from pathlib import Path

from attn_tune.schema import StorageError


def user_packs() -> Path:
    """``attn-tune/packs`` in the user's data directory (XDG)."""
    from attn_tune.cli.options import data_directory

    return data_directory() / "packs"


def install_pack(path: Path) -> Path:
    """Verifies the pack at ``path`` and copies it; an equal one that is there already stays.

    Raises:
      IntegrityError: the pack is not what it claims to be.
      StorageError: it cannot be copied, or another pack of that name is there.
    """
    from attn_tune.runtime.packs import read_pack

    pack = read_pack(path)
    folder = user_packs()
    target = folder / path.name
    if target.exists():
        if read_pack(target).digest == pack.digest:
            return target
        raise StorageError(f"{target} is another pack; remove it first, or rename {path}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Copied aside and renamed, so that no job ever meets half a pack.
        with tempfile.TemporaryDirectory(dir=folder, prefix=".incoming-") as aside:
            copy = Path(aside) / path.name
            if path.is_dir():
                shutil.copytree(path, copy)
            else:
                shutil.copyfile(path, copy)
            read_pack(copy)
            os.rename(copy, target)
    except OSError as error:
        raise StorageError(f"cannot install {path} in {folder}: {error}") from None
    return target
