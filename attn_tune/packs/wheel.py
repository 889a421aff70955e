"""Packs as wheels: ``pip install`` puts one where every job of that Python finds it. Data only, no code.

A wheel holds one folder without an ``__init__.py``, and names it in an entry point of the group ``attn_tune.packs``.
Lookups read that folder as data; nothing of it is ever imported. Stored, not compressed, with fixed dates: the same
pack, the same bytes.
"""

import base64
import hashlib
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path

from attn_tune.packs.archive import read_files, zip_bytes
from attn_tune.packs.plain_files import status_of_plain, write_whole
from attn_tune.packs.reader import pack_from_files
from attn_tune.schema.errors import StorageError, UsageError
from attn_tune.schema.logs import log

GROUP = "attn_tune.packs"

_FOLDER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*")
# The part of PEP 440 that a pack's version can be.
_VERSION = re.compile(r"[0-9]+(\.[0-9]+)*((a|b|rc)[0-9]+)?(\.post[0-9]+)?(\.dev[0-9]+)?(\+[a-z0-9]+(\.[a-z0-9]+)*)?")


def installed_packs() -> dict[str, str]:
    """The distributions of the packs that installed ones announce, by path, in the order of the packs' names."""
    import importlib.metadata  # slow to import, and of use only when packs are looked for

    found: dict[tuple[str, str], tuple[str, str]] = {}
    for entry in importlib.metadata.entry_points(group=GROUP):
        if entry.dist is None or not _FOLDER.fullmatch(entry.value):
            log.warning("ignored: the entry point %r of %s names no folder", entry.name, GROUP)
            continue
        folder = Path(str(entry.dist.locate_file(entry.value.replace(".", "/"))))
        found.setdefault((entry.name, entry.value), (str(folder), entry.dist.name))
    return dict(pair for _, pair in sorted(found.items()))


def export_wheel(pack_path: Path, folder: Path, *, overwrite: bool = False) -> Path:
    """Writes the pack at ``pack_path`` as a wheel into ``folder``; returns the wheel's path.

    Raises:
      IntegrityError, StorageError: as ``read_pack``; or the wheel is there already and ``overwrite`` is off.
      UsageError: the pack's version is none that a wheel can have.
    """
    files = read_files(pack_path)
    pack = pack_from_files(files, str(pack_path))
    path = wheel_path(pack.name, pack.version, folder, overwrite=overwrite)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(path, zip_bytes(_wheel_files(files, _distribution(pack.name), pack.name, pack.version)))
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror or error}") from None
    return path


def wheel_path(pack_name: str, version: str, folder: Path, *, overwrite: bool) -> Path:
    """The path of the wheel of a pack in ``folder``, to be asked before anything is written.

    Raises:
      StorageError: a file is there already, and ``overwrite`` is off or it is no wheel of this pack.
      UsageError: a wheel cannot have this version.
    """
    if not _VERSION.fullmatch(version):
        raise UsageError(f"a wheel's version is like 2026.9.1, not {version!r}; give the pack another one: --version")
    name = _distribution(pack_name)
    path = folder / f"{name}-{version}-py3-none-any.whl"
    if status_of_plain(path, str(path)) is None:
        return path
    if not overwrite:
        raise StorageError(f"{path} exists; choose another folder, or replace it with --overwrite")
    try:
        with zipfile.ZipFile(path) as wheel:
            points = wheel.read(f"{name}-{version}.dist-info/entry_points.txt").decode()
    except (OSError, KeyError, ValueError, zipfile.BadZipFile):
        points = ""
    if f"\n{pack_name} = " not in points:
        raise StorageError(f"{path} is no wheel of the pack {pack_name}, whose place it takes; move it away")
    return path


def _distribution(pack_name: str) -> str:
    return f"attn_tune_pack_{re.sub(r'[^a-z0-9]+', '_', pack_name.lower())}"


def _wheel_files(files: Mapping[str, bytes], name: str, pack_name: str, version: str) -> dict[str, bytes]:
    """The files of the wheel by their paths inside (PEP 427)."""
    info = f"{name}-{version}.dist-info"
    texts = {
        "METADATA": f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n"
        f"Summary: The attn-tune config pack {pack_name}.\n",
        "WHEEL": "Wheel-Version: 1.0\nGenerator: attn-tune\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "entry_points.txt": f"[{GROUP}]\n{pack_name} = {name}\n",
    }
    found = {f"{name}/{path}": data for path, data in files.items()}
    found |= {f"{info}/{path}": text.encode() for path, text in texts.items()}
    lines = [f"{path},sha256={_digest(data)},{len(data)}\n" for path, data in sorted(found.items())]
    return {**found, f"{info}/RECORD": "".join([*lines, f"{info}/RECORD,,\n"]).encode()}


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
