"""A pack as a wheel: ``pip install`` puts it where every job of that Python finds it. Data only, no code.

The wheel holds one folder without an ``__init__.py``, and says by an entry point of the group ``attn_tune.packs`` that
the pack is in it. Stored, not compressed, with fixed dates: the same pack, the same bytes.
"""

import base64
import hashlib
import os
import re
import secrets
from collections.abc import Mapping
from pathlib import Path

from attn_tune.db.pack_writer import write_file, zip_bytes
from attn_tune.runtime.archive import read_files
from attn_tune.runtime.packs import pack_from_files
from attn_tune.runtime.wheel_packs import GROUP
from attn_tune.schema import StorageError, UsageError

# PEP 440, what of it a pack's version can be.
_VERSION = re.compile(
    r"[0-9]+(\.[0-9]+)*((a|b|rc)[0-9]+)?(\.post[0-9]+)?(\.dev[0-9]+)?(\+[a-z0-9]+(\.[a-z0-9]+)*)?"
)


def export_wheel(pack_path: Path, folder: Path, *, overwrite: bool = False) -> Path:
    """Writes the pack at ``pack_path`` as a wheel into ``folder``; returns the wheel's path.

    Raises:
      IntegrityError, StorageError: as ``read_pack``; or the wheel is there already and ``overwrite`` is off.
      UsageError: the pack's version is none that a wheel can have.
    """
    files = read_files(pack_path)
    pack = pack_from_files(files, str(pack_path))
    if not _VERSION.fullmatch(pack.version):
        raise UsageError(
            f"a wheel's version is like 2026.9.1, not {pack.version!r}; export the pack again with --version"
        )
    name = f"attn_tune_pack_{re.sub(r'[^a-z0-9]+', '_', pack.name.lower())}"
    path = folder / f"{name}-{pack.version}-py3-none-any.whl"
    if path.exists() and not overwrite:
        raise StorageError(f"{path} exists; choose another folder, or replace it with --overwrite")
    data = zip_bytes(wheel_files(files, name=name, pack_name=pack.name, version=pack.version))
    draft = folder / f".{path.name}.{secrets.token_hex(8)}.new"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_file(draft, data)
        os.replace(draft, path)
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror or error}") from None
    finally:
        draft.unlink(missing_ok=True)
    return path


def wheel_files(
    files: Mapping[str, bytes], *, name: str, pack_name: str, version: str
) -> dict[str, bytes]:
    """The files of the wheel by their paths inside (PEP 427)."""
    info = f"{name}-{version}.dist-info"
    found = {f"{name}/{path}": data for path, data in files.items()}
    found[f"{info}/METADATA"] = (
        f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n"
        f"Summary: The attn-tune config pack {pack_name}.\n"
    ).encode()
    found[f"{info}/WHEEL"] = (
        b"Wheel-Version: 1.0\nGenerator: attn-tune\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    )
    found[f"{info}/entry_points.txt"] = f"[{GROUP}]\n{pack_name} = {name}\n".encode()
    lines = [f"{path},sha256={_digest(data)},{len(data)}\n" for path, data in sorted(found.items())]
    found[f"{info}/RECORD"] = "".join([*lines, f"{info}/RECORD,,\n"]).encode()
    return found


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
