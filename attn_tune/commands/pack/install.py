"""Puts a pack into the folder where every job of this user finds it."""

import os
import shutil
import tempfile
from pathlib import Path

from attn_tune.schema import StorageError


def user_packs() -> Path:
    """``attn-tune/packs`` in the user's data directory (XDG)."""
    from attn_tune.commands.shared.options import data_directory

    return data_directory() / "packs"


def install_pack(path: Path, *, replace: bool = False) -> Path:
    """Verifies the pack at ``path`` and copies it; an equal one that is there already stays.

    With ``replace`` the pack takes the place of what has its name there, in one step.

    Raises:
      IntegrityError: the pack is not what it claims to be.
      StorageError: it cannot be copied, or another pack of that name is there.
    """
    from attn_tune.packs.reader import read_pack
    from attn_tune.packs.writer import check_target

    pack = read_pack(path)
    if path.name in ("", ".."):  # such as ".", which would stand for the folder of packs itself
        path = path.resolve()
    folder = user_packs()
    target = folder / path.name
    if replace:
        check_target(target, overwrite=True)
    elif target.exists():
        if read_pack(target).digest == pack.digest:
            return target
        raise StorageError(f"{target} is another pack; put this one in its place with --replace, or rename {path}")
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
            if target.is_dir() or (copy.is_dir() and target.exists()):
                _exchange(copy, target)
            else:
                os.replace(copy, target)
    except OSError as error:
        if isinstance(error, StorageError):
            raise
        raise StorageError(f"cannot install {path} in {folder}: {error}") from None
    return target


def _exchange(new: Path, old: Path) -> None:
    from attn_tune.packs.plain_files import exchange

    try:
        exchange(new, old)
    except OSError as error:
        reason = error.strerror or error
        raise StorageError(f"{old} cannot be replaced in one step: {reason}; remove it, then import again") from None
