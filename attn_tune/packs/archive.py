"""The files of a pack, in a folder, in a zip or in memory. Only plain files at plain paths are read.

Errors name the pack where ``naming`` is entered.
"""

import contextlib
import io
import os
import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from attn_tune.packs.plain_files import status_of_plain
from attn_tune.schema.errors import IntegrityError, StorageError, short
from attn_tune.schema.words import printable

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

_MAX_ERROR = 2000
# No part starts with a dot, so none is "." or "..".
_PATH = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*(?:/[A-Za-z0-9_][A-Za-z0-9_.+-]*)*")
# A zip file cannot leave the date out; this is the earliest.
_EPOCH = (1980, 1, 1, 0, 0, 0)
_BROKEN_ZIP = (
    *(zipfile.BadZipFile, zlib.error, struct.error, EOFError, KeyError, RuntimeError),
    *(ValueError, OverflowError, MemoryError, OSError),
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
          IntegrityError: a path or a size that a pack cannot have.
        """
        names = _checked((name, len(data)) for name, data in files.items())
        return cls(names, lambda wanted: [files[name] for name in wanted])


def list_files(path: Path) -> Files:
    """The files of the pack at ``path``.

    Raises:
      OSError: there is nothing at ``path``, or it cannot be read.
      IntegrityError: a link, a path that leaves the pack, a broken zip, more or larger files than a pack can have.
    """
    if path.is_dir():
        return Files(_checked(_folder_entries(str(path))), partial(_read_folder, path))
    with _open_zip(path) as archive:
        return Files(_checked(_zip_entries(archive)), partial(_read_zip, path))


def read_files(path: str | os.PathLike[str]) -> dict[str, bytes]:
    """Every file of the pack at ``path``, by its path inside.

    Raises:
      StorageError, IntegrityError: as ``read_pack``.
    """
    with naming(f"pack {brief(path)}"):
        files = list_files(Path(path))
        return dict(zip(files.names, files.load(files.names), strict=True))


def is_pack(path: Path) -> bool:
    """Whether readers take ``path`` for a pack, even a broken one: a folder with a manifest, or an ``.atpack`` file."""
    return (path / MANIFEST).is_file() or (path.suffix == SUFFIX and path.is_file())


def brief(path: str | os.PathLike[str]) -> str:
    """``path`` for a message: printable, a very long one without its middle."""
    return _one_line(short(os.fspath(path), 300))


def _one_line(text: str) -> str:
    """``printable`` text, whose tabs and ends of lines are escapes too."""
    return printable(text).replace("\t", "\\t").replace("\n", "\\n")


@contextlib.contextmanager
def naming(where: str) -> Generator[None]:
    """Errors within a ``with`` block begin with ``where`` and are one line of bounded length.

    Raises:
      StorageError: for any OSError.
    """
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(f"{where} cannot be read: {error.strerror or error}") from None
    except IntegrityError as error:
        raise IntegrityError(_one_line(f"{where}: {error}")[:_MAX_ERROR]) from None


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


def _checked(entries: Iterable[tuple[str, int | None]]) -> tuple[str, ...]:
    """The names of files, from names and sizes; a folder has no size."""
    sizes: dict[str, int | None] = {}
    for name, size in entries:
        if len(name) > 200 or not _PATH.fullmatch(name):
            raise IntegrityError(f"it holds a file at the unsafe path {name[:200]!r}")
        if name in sizes:
            raise IntegrityError(f"it holds {name!r} twice")
        limit = MAX_HEAD_BYTES if name in HEAD else MAX_FILE_BYTES
        if size is not None and size > limit:
            raise IntegrityError(f"its file {name!r} is larger than {limit} bytes")
        sizes[name] = size
        if len(sizes) > MAX_FILES:
            raise IntegrityError(f"it holds more than {MAX_FILES} files")
    if sum(filter(None, sizes.values())) > MAX_TOTAL_BYTES:
        raise IntegrityError(f"it holds more than {MAX_TOTAL_BYTES} bytes")
    return tuple(name for name, size in sizes.items() if size is not None)


def _folder_entries(folder: str, prefix: str = "") -> Iterator[tuple[str, int | None]]:
    for entry in sorted(os.scandir(folder), key=lambda e: e.name):
        name = prefix + entry.name
        if entry.is_dir(follow_symlinks=False):
            yield name, None
            yield from _folder_entries(entry.path, f"{name}/")
        elif entry.is_file(follow_symlinks=False):
            yield name, entry.stat(follow_symlinks=False).st_size
        else:
            raise IntegrityError(f"it holds {name!r}, a link or a pipe, which is not a plain file")


def _read_folder(root: Path, names: Iterable[str]) -> list[bytes]:
    found: list[bytes] = []
    for name in names:
        # No-follow: the file may have become a link since it was listed. Non-blocking: it may be a pipe.
        flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
        descriptor = os.open(f"{root}/{name}", flags | getattr(os, "O_CLOEXEC", 0))
        with open(descriptor, "rb", buffering=0) as file:
            info = os.fstat(descriptor)
            if not stat.S_ISREG(info.st_mode):
                raise IntegrityError(f"it holds {name!r}, which is not a plain file")
            # Not up to the limit: a read makes room for all that it may return.
            found.append(file.read(min(info.st_size, MAX_FILE_BYTES) + 1))
    return found


@contextlib.contextmanager
def _open_zip(path: Path) -> Generator[zipfile.ZipFile]:
    # Each time: what it was when it was listed may have been replaced. A FIFO blocks who opens it.
    info = status_of_plain(path, f"pack {brief(path)}")
    if info is not None and info.st_size > MAX_TOTAL_BYTES:
        raise IntegrityError(f"it is larger than {MAX_TOTAL_BYTES} bytes")
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive
    except _BROKEN_ZIP as error:
        # A broken offset makes zipfile seek outside the file: such an error names no file.
        if isinstance(error, IntegrityError) or getattr(error, "filename", None) is not None:
            raise
        raise IntegrityError(f"it is not a readable zip file: {error!s:.200}") from None


def _zip_entries(archive: zipfile.ZipFile) -> Iterator[tuple[str, int | None]]:
    for info in archive.infolist():
        mode = info.external_attr >> 16
        if mode and not stat.S_ISREG(mode) and stat.S_IFMT(mode):
            raise IntegrityError(f"it holds {info.filename!r}, which is not a plain file")
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise IntegrityError(f"it holds {info.filename!r} in an unusual compression")
        # zipfile rewrites backslashes and NULs; the name as written is in orig_filename.
        yield info.orig_filename, info.file_size


def _read_zip(path: Path, names: Iterable[str]) -> list[bytes]:
    with _open_zip(path) as archive:
        found: list[bytes] = []
        for name in names:
            with archive.open(name) as file:
                found.append(file.read(MAX_FILE_BYTES + 1))
        return found
