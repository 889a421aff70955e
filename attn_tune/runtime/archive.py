"""The files of a pack, a folder or a zip, as bytes in memory, refusing whatever is not a plain file at a plain path."""

import os
import re
import stat
import struct
import zipfile
import zlib
from pathlib import Path

from attn_tune.runtime.whole_files import status_of_plain
from attn_tune.schema.errors import IntegrityError, StorageError, short

SUFFIX = ".atpack"
SUMS = "SHA256SUMS"
SIGNED = "SHA256SUMS.sig"
MANIFEST = "manifest.json"
QUARANTINE = "quarantine.json"

# Far above any real pack (20 000 decisions are a few MB of shards), far below what hurts the process that reads it.
MAX_FILES = 4096
MAX_FILE_BYTES = 64 * 1024 * 1024
# Of the manifest, the sums, the signatures and the quarantine list: the first lookup parses them whole. The slowest
# JSON of this size takes 1 s and 120 MB; the manifest of the pack nvidia-h200 has 4 KB.
MAX_HEAD_BYTES = 4 * 1024 * 1024
MAX_TOTAL_BYTES = 256 * 1024 * 1024

_PATH = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*(?:/[A-Za-z0-9_][A-Za-z0-9_.+-]*)*")


def read_files(path: str | os.PathLike[str]) -> dict[str, bytes]:
    """Every file of the pack at ``path``, by its path inside.

    Raises:
      StorageError: there is nothing at ``path``, or it cannot be read.
      IntegrityError: a link, a path that leaves the pack, a broken zip, more or larger files than a pack can have.
    """
    path = Path(path)
    try:
        return _read_folder(path) if path.is_dir() else _read_zip(path)
    except OSError as error:
        if isinstance(error, StorageError):
            raise
        raise StorageError(
            f"pack {brief(path)} cannot be read: {error.strerror or error}"
        ) from None


def is_pack(path: Path) -> bool:
    """Whether ``path`` looks like a pack: an ``.atpack`` file, or a folder with a manifest."""
    return path.is_file() if path.suffix == SUFFIX else (path / MANIFEST).is_file()


def brief(path: str | os.PathLike[str]) -> str:
    """``path`` in a message: a very long one without its middle."""
    return short(os.fspath(path), 300)


def check_path(name: str) -> None:
    """Refuses a path that is absolute, climbs, or is not plain ASCII words between slashes.

    Raises:
      IntegrityError: the path is none that a pack may have.
    """
    # No part starts with a dot, so none is "." or "..".
    if len(name) > 200 or not _PATH.fullmatch(name):
        raise IntegrityError(f"pack holds a file at the unsafe path {name[:200]!r}")


def _read_folder(root: Path) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    total = 0
    pending = [(str(root), "")]
    while pending:
        folder, prefix = pending.pop()
        for entry in sorted(os.scandir(folder), key=lambda e: e.name):
            name = prefix + entry.name
            check_path(name)
            if entry.is_symlink():
                raise IntegrityError(
                    f"pack {brief(root)} holds a link at {name!r}; packs hold plain files"
                )
            if entry.is_dir(follow_symlinks=False):
                pending.append((entry.path, name + "/"))
                if len(pending) > MAX_FILES:
                    raise IntegrityError(f"pack {brief(root)} holds more than {MAX_FILES} folders")
                continue
            found[name] = _read_plain_file(entry.path, name)
            total += len(found[name])
            _check_totals(root, len(found), total)
    return found


def _read_plain_file(path: str, name: str) -> bytes:
    # No-follow: the entry may have become a link since it was listed. Non-blocking: it may be a pipe.
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    file = os.open(path, flags | getattr(os, "O_CLOEXEC", 0))
    try:
        info = os.fstat(file)
        if not stat.S_ISREG(info.st_mode):
            raise IntegrityError(f"pack holds {name!r}, which is not a plain file")
        _check_size(name, info.st_size)
        # Not up to the limit: a read makes room for all that it may return. One read mostly is the whole file.
        found = os.read(file, info.st_size + 1)
        while len(found) < info.st_size and (more := os.read(file, info.st_size + 1 - len(found))):
            found += more
        return found
    finally:
        os.close(file)


def _read_zip(path: Path) -> dict[str, bytes]:
    status_of_plain(path, f"pack {brief(path)}")  # a FIFO blocks who opens it
    if path.stat().st_size > MAX_TOTAL_BYTES:
        raise IntegrityError(f"pack {brief(path)} is larger than {MAX_TOTAL_BYTES} bytes")
    try:
        with zipfile.ZipFile(path) as archive:
            return _read_entries(path, archive)
    except (
        zipfile.BadZipFile,
        zlib.error,
        struct.error,
        EOFError,
        NotImplementedError,
        RuntimeError,
        ValueError,
        OverflowError,
        MemoryError,
    ) as error:
        if isinstance(error, IntegrityError):
            raise
        raise IntegrityError(
            f"pack {brief(path)} is not a readable zip file: {error!s:.200}"
        ) from None
    except OSError as error:
        # A broken offset makes zipfile seek outside the file; the file itself was opened.
        if error.errno is not None and error.filename is not None:
            raise
        raise IntegrityError(
            f"pack {brief(path)} is not a readable zip file: {error!s:.200}"
        ) from None


def _read_entries(path: Path, archive: zipfile.ZipFile) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    total = 0
    for info in archive.infolist():
        name = info.filename
        # zipfile rewrites backslashes and NULs; what was written is in orig_filename.
        if info.orig_filename != name:
            raise IntegrityError(
                f"pack holds a file at the unsafe path {info.orig_filename[:200]!r}"
            )
        check_path(name)
        mode = info.external_attr >> 16
        if mode and not stat.S_ISREG(mode) and stat.S_IFMT(mode):
            raise IntegrityError(f"pack {brief(path)} holds {name!r}, which is not a plain file")
        if name in found:
            raise IntegrityError(f"pack {brief(path)} holds {name!r} twice")
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise IntegrityError(f"pack {brief(path)} holds {name!r} in an unusual compression")
        _check_size(name, info.file_size)
        with archive.open(info) as file:
            found[name] = file.read(MAX_FILE_BYTES + 1)
        total += len(found[name])
        _check_totals(path, len(found), total)
    return found


def _check_size(name: str, size: int) -> None:
    limit = MAX_HEAD_BYTES if name in (MANIFEST, QUARANTINE, SUMS, SIGNED) else MAX_FILE_BYTES
    if size > limit:
        raise IntegrityError(f"pack file {name!r} is larger than {limit} bytes")


def _check_totals(root: Path, files: int, total: int) -> None:
    if files > MAX_FILES:
        raise IntegrityError(f"pack {brief(root)} holds more than {MAX_FILES} files")
    if total > MAX_TOTAL_BYTES:
        raise IntegrityError(f"pack {brief(root)} holds more than {MAX_TOTAL_BYTES} bytes")
