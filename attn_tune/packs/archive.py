"""The files of a pack, in a folder, in a zip or in memory. Only plain files at plain paths are read."""

import contextlib
import io
import os
import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from attn_tune.packs.plain_files import status_of_plain
from attn_tune.schema.errors import IntegrityError, StorageError, short

SUFFIX = ".atpack"
SUMS = "SHA256SUMS"
SIGNED = "SHA256SUMS.sig"
MANIFEST = "manifest.json"
QUARANTINE = "quarantine.json"
# The files that the first lookup parses whole.
HEAD = (MANIFEST, QUARANTINE, SUMS, SIGNED)

# Far above any real pack (20 000 decisions are a few MB of shards), far below what hurts the process that reads it.
MAX_FILES = 4096
MAX_FILE_BYTES = 64 * 1024 * 1024
# Of a file of the head. The slowest JSON of this size takes 1 s and 120 MB; the manifest of nvidia-h200 has 4 KB.
MAX_HEAD_BYTES = 4 * 1024 * 1024
MAX_TOTAL_BYTES = 256 * 1024 * 1024

# No part starts with a dot, so none is "." or "..".
_PATH = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*(?:/[A-Za-z0-9_][A-Za-z0-9_.+-]*)*")
# A zip file cannot leave the date out; this is the earliest.
_EPOCH = (1980, 1, 1, 0, 0, 0)
_ZIP_ERRORS = (
    zipfile.BadZipFile,
    KeyError,
    zlib.error,
    struct.error,
    EOFError,
    NotImplementedError,
    RuntimeError,
    ValueError,
    OverflowError,
    MemoryError,
    OSError,
)


@dataclass(frozen=True, slots=True)
class Files:
    """The files of one pack: listed and checked by name and size, read when they are needed.

    Attributes:
      names: the paths inside.
      load: reads the files of some of these paths.
    """

    names: tuple[str, ...]
    load: Callable[[Iterable[str]], list[bytes]]

    @classmethod
    def of(cls, files: Mapping[str, bytes]) -> "Files":
        """Files that are in memory.

        Raises:
          IntegrityError: a path that a pack cannot have.
        """
        for name in files:
            _check_path(name)
        return cls(tuple(files), partial(_read_memory, files))

    def read(self, *names: str) -> list[bytes]:
        """The bytes of these files.

        Raises:
          As ``list_files``.
        """
        return self.load(names)


def list_files(path: str | os.PathLike[str]) -> Files:
    """The files of the pack at ``path``.

    Raises:
      StorageError: there is nothing at ``path``, or it cannot be read.
      IntegrityError: a link, a path that leaves the pack, a broken zip, more or larger files than a pack can have.
    """
    path = Path(path)
    with _storage_errors(path):
        if path.is_dir():
            return Files(_list_folder(path), partial(_read_folder, path))
        info = status_of_plain(path, f"pack {brief(path)}")  # a FIFO blocks who opens it
        if info is not None and info.st_size > MAX_TOTAL_BYTES:
            raise IntegrityError(f"pack {brief(path)} is larger than {MAX_TOTAL_BYTES} bytes")
        with _open_zip(path) as archive:
            return Files(_list_zip(path, archive), partial(_read_zip, path))


def read_files(path: str | os.PathLike[str]) -> dict[str, bytes]:
    """Every file of the pack at ``path``, by its path inside.

    Raises:
      As ``list_files``.
    """
    files = list_files(path)
    return dict(zip(files.names, files.read(*files.names), strict=True))


def is_pack(path: Path) -> bool:
    """Whether ``path`` looks like a pack: an ``.atpack`` file, or a folder with a manifest."""
    return path.is_file() if path.suffix == SUFFIX else (path / MANIFEST).is_file()


def brief(path: str | os.PathLike[str]) -> str:
    """``path`` for a message: a very long one without its middle."""
    return short(os.fspath(path), 300)


def zip_bytes(files: Mapping[str, bytes]) -> bytes:
    """A zip with fixed dates and modes. Stored: compressed bytes would differ between builds of zlib."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, data in sorted(files.items()):
            info = zipfile.ZipInfo(name, _EPOCH)
            info.create_system = 3
            info.external_attr = 0o100644 << 16
            archive.writestr(info, data)
    return buffer.getvalue()


def _read_memory(files: Mapping[str, bytes], names: Iterable[str]) -> list[bytes]:
    return [files[name] for name in names]


def _list_folder(root: Path) -> tuple[str, ...]:
    found: list[str] = []
    total = seen = 0
    pending = [(str(root), "")]
    while pending:
        folder, prefix = pending.pop()
        for entry in sorted(os.scandir(folder), key=lambda e: e.name):
            name = prefix + entry.name
            _check_path(name)
            if entry.is_symlink():
                raise IntegrityError(
                    f"pack {brief(root)} holds a link at {name!r}; packs hold plain files"
                )
            if entry.is_dir(follow_symlinks=False):
                pending.append((entry.path, name + "/"))
            elif entry.is_file(follow_symlinks=False):
                found.append(name)
                total += _checked_size(name, entry.stat(follow_symlinks=False).st_size)
            else:
                raise IntegrityError(f"pack holds {name!r}, which is not a plain file")
            seen += 1
            _check_totals(root, seen, total)
    return tuple(found)


def _read_folder(root: Path, names: Iterable[str]) -> list[bytes]:
    with _storage_errors(root):
        return [_read_plain_file(root / name, name) for name in names]


def _read_plain_file(path: Path, name: str) -> bytes:
    # No-follow: the file may have become a link since it was listed. Non-blocking: it may be a pipe.
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    with open(os.open(path, flags | getattr(os, "O_CLOEXEC", 0)), "rb") as file:
        info = os.fstat(file.fileno())
        if not stat.S_ISREG(info.st_mode):
            raise IntegrityError(f"pack holds {name!r}, which is not a plain file")
        # Not up to the limit: a read makes room for all that it may return.
        return file.read(_checked_size(name, info.st_size) + 1)


@contextlib.contextmanager
def _open_zip(path: Path) -> Iterator[zipfile.ZipFile]:
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive
    except IntegrityError:
        raise
    except _ZIP_ERRORS as error:
        # A broken offset makes zipfile seek outside the file: such an error names no file.
        if isinstance(error, OSError) and error.filename is not None:
            raise
        raise IntegrityError(
            f"pack {brief(path)} is not a readable zip file: {error!s:.200}"
        ) from None


def _list_zip(path: Path, archive: zipfile.ZipFile) -> tuple[str, ...]:
    found: dict[str, None] = {}
    total = 0
    for info in archive.infolist():
        name = info.filename
        # zipfile rewrites backslashes and NULs; the name as written is in orig_filename.
        _check_path(info.orig_filename)
        mode = info.external_attr >> 16
        if mode and not stat.S_ISREG(mode) and stat.S_IFMT(mode):
            raise IntegrityError(f"pack {brief(path)} holds {name!r}, which is not a plain file")
        if name in found:
            raise IntegrityError(f"pack {brief(path)} holds {name!r} twice")
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise IntegrityError(f"pack {brief(path)} holds {name!r} in an unusual compression")
        found[name] = None
        total += _checked_size(name, info.file_size)
        _check_totals(path, len(found), total)
    return tuple(found)


def _read_zip(path: Path, names: Iterable[str]) -> list[bytes]:
    with _storage_errors(path), _open_zip(path) as archive:
        found = []
        for name in names:
            with archive.open(name) as file:
                found.append(file.read(_checked_size(name, archive.getinfo(name).file_size) + 1))
        return found


@contextlib.contextmanager
def _storage_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        reason = error.strerror or error
        raise StorageError(f"pack {brief(path)} cannot be read: {reason}") from None


def _check_path(name: str) -> None:
    """Refuses a path that is absolute, climbs, or is not plain ASCII words between slashes."""
    if len(name) > 200 or not _PATH.fullmatch(name):
        raise IntegrityError(f"pack holds a file at the unsafe path {name[:200]!r}")


def _checked_size(name: str, size: int) -> int:
    limit = MAX_HEAD_BYTES if name in HEAD else MAX_FILE_BYTES
    if size > limit:
        raise IntegrityError(f"pack file {name!r} is larger than {limit} bytes")
    return size


def _check_totals(root: Path, files: int, total: int) -> None:
    if files > MAX_FILES:
        raise IntegrityError(f"pack {brief(root)} holds more than {MAX_FILES} files")
    if total > MAX_TOTAL_BYTES:
        raise IntegrityError(f"pack {brief(root)} holds more than {MAX_TOTAL_BYTES} bytes")
