"""Puts the files of a pack at a path: a folder, or one file; verified before anyone can see it, all or nothing."""

import dataclasses
import io
import os
import secrets
import shutil
import zipfile
from collections.abc import Mapping
from pathlib import Path

from attn_tune.runtime.archive import SUFFIX, is_pack
from attn_tune.runtime.packs import Pack, read_pack
from attn_tune.schema import StorageError

# A zip file cannot say "no date"; this is the earliest it can say.
EPOCH = (1980, 1, 1, 0, 0, 0)


def check_target(path: Path, *, overwrite: bool) -> None:
    """Refuses a path that is taken; with ``overwrite``, one that holds anything but a pack of the same kind.

    Raises:
      StorageError: it is, or it lies within a pack, which another file would break.
    """
    if around := next((folder for folder in path.absolute().parents if is_pack(folder)), None):
        raise StorageError(f"{path} lies within the pack {around}; choose a path beside it")
    if not path.exists() and not path.is_symlink():
        return
    if not overwrite:
        raise StorageError(f"{path} exists; choose another path, or replace it with --overwrite")
    empty = path.is_dir() and not any(path.iterdir())
    if path.is_dir() == (path.suffix == SUFFIX) or not (is_pack(path) or empty):
        raise StorageError(f"{path} is not a pack of this kind, so it is not overwritten")


def write_pack(path: Path, files: Mapping[str, bytes]) -> Pack:
    """Writes ``files`` aside, reads them back, and moves them into place over the pack that is there, if any.

    Raises:
      StorageError: it cannot be written.
      IntegrityError: the files are not a pack.
    """
    stem = f".{path.name}.{secrets.token_hex(8)}"
    draft, old = path.with_name(stem + ".new"), path.with_name(stem + ".old")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == SUFFIX:
            write_file(draft, zip_bytes(files))
        else:
            for name, data in files.items():
                (draft / name).parent.mkdir(parents=True, exist_ok=True)
                write_file(draft / name, data)
        pack = read_pack(draft, signed=False)
        if path.is_dir():  # a folder cannot be replaced in one step: move the old one aside first
            path.rename(old)
        os.replace(draft, path)
    except OSError as error:
        if isinstance(error, StorageError):
            raise
        raise StorageError(f"{path} cannot be written: {error.strerror or error}") from error
    finally:
        if path.suffix == SUFFIX:
            draft.unlink(missing_ok=True)
        else:
            shutil.rmtree(draft, ignore_errors=True)
            if path.exists():  # else the old pack is the only one there is
                shutil.rmtree(old, ignore_errors=True)
    return dataclasses.replace(pack, path=str(path))


def write_file(path: Path, data: bytes) -> None:
    """Writes a file that must not be there yet, durably."""
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def zip_bytes(files: Mapping[str, bytes]) -> bytes:
    """A zip with fixed dates and modes. Stored: compressed bytes would differ between builds of zlib."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, data in sorted(files.items()):
            info = zipfile.ZipInfo(name, EPOCH)
            info.create_system = 3
            info.external_attr = 0o100644 << 16
            archive.writestr(info, data)
    return buffer.getvalue()
