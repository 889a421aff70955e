"""Writes config packs: an immutable, verified export of decisions. Same trials and flags, same bytes.

Layout and reader: ``attn_tune.runtime.packs``. Nothing in a pack says when or where it was made.
"""

import hashlib
import io
import json
import os
import re
import secrets
import shutil
import zipfile
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from attn_tune.db.database import Database
from attn_tune.runtime.archive import MANIFEST, SUFFIX, SUMS, is_pack
from attn_tune.runtime.packs import FORMAT, read_pack
from attn_tune.runtime.rows import Row, decision_digest
from attn_tune.schema import (
    Decision,
    Device,
    NoDataError,
    StorageError,
    UsageError,
    canonical_json,
)

MIN_READER = 1
PPM = 1_000_000

_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,99}")
# A zip file cannot say "no date"; this is the earliest it can say.
_EPOCH = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class PackSummary:
    """What was written. ``problems`` counts (device, signature, direction)."""

    path: Path
    name: str
    version: str
    rows: int
    problems: int
    devices: tuple[str, ...]
    digest: str
    decision_digest: str
    size_bytes: int


def export_pack(
    database: Database,
    path: str | os.PathLike[str],
    *,
    name: str,
    version: str,
    device: Device | str | None = None,
    op: str | None = None,
    kernels: Collection[str] | None = None,
    direction: str | None = None,
    overwrite: bool = False,
    allow_predicted: bool = False,
) -> PackSummary:
    """Decides from the trials as they are now and writes a pack.

    It is one file when ``path`` ends in ``.atpack``, else a folder.

    ``device`` is a device, a digest, a variant or a family; ``kernels`` are names or ``"op/name"``, and the best among
    them is the pack's winner. Rows of an op's older contract are left out. With ``allow_predicted`` problems that were
    not measured have rows whose state is ``predicted``. The pack is read back and verified before
    it appears at ``path``.

    Raises:
      NoDataError: nothing fits.
      UsageError: a name or version that a pack cannot have.
      StorageError: ``path`` is taken (``overwrite`` replaces a pack, and only a pack), or cannot be written.
    """
    path = Path(path)
    for what, word in (("name", name), ("version", version)):
        if not _WORD.fullmatch(word):
            raise UsageError(f"a pack's {what} is letters, digits and _.+-, not {word!r}")
    _check_target(path, overwrite)
    found = list(database.decide())
    if allow_predicted:
        found += database.decide_predicted()
    chosen = _select(found, device, op, kernels, direction)
    if not chosen:
        raise NoDataError(
            f"{database.path} has no decision for device={device}, op={op}, kernels={kernels}, direction={direction}; "
            "sweep first, or ask for less"
        )
    files = pack_files(chosen, name=name, version=version)
    _write(path, files)
    pack = read_pack(path)
    return PackSummary(
        path=path,
        name=name,
        version=version,
        rows=len(pack.rows),
        problems=len({row.key[:3] for row in pack.rows}),
        devices=tuple(sorted(str(d) for d in pack.devices.values())),
        digest=pack.digest,
        decision_digest=pack.decision_digest,
        size_bytes=sum(map(len, files.values())),
    )


def pack_files(decisions: Iterable[Decision], *, name: str, version: str) -> dict[str, bytes]:
    """The files of a pack by their paths inside; the order of ``decisions`` does not matter."""
    decisions = list(decisions)
    shards: dict[str, list[Row]] = defaultdict(list)
    for decision in decisions:
        row = _to_row(decision)
        shards[_shard_path(decision.device.family, row)].append(row)
    files = {path: _shard_text(rows).encode() for path, rows in sorted(shards.items())}
    rows = [row for group in shards.values() for row in group]
    manifest = {
        "format": FORMAT,
        "min_reader": MIN_READER,
        "name": name,
        "version": version,
        "tool": f"attn-tune {_tool_version()}",
        "devices": {d.device.digest: d.device.identity for d in decisions},
        "environments": {d.environment.digest: asdict(d.environment) for d in decisions},
        "kernels": [
            {"kernel": kernel, "contract": contract}
            for kernel, contract in sorted({(d.kernel, d.contract) for d in decisions})
        ],
        "shards": [
            {"path": path, "rows": len(shards[path]), "sha256": _sha256(data)}
            for path, data in files.items()
        ],
        "decision_digest": decision_digest(rows),
        "rows": len(rows),
    }
    text = json.dumps(manifest, sort_keys=True, indent=1, allow_nan=False) + "\n"
    files[MANIFEST] = text.encode()
    sums = "".join(f"{_sha256(files[path])}  {path}\n" for path in sorted(files))
    files[SUMS] = sums.encode()
    return dict(sorted(files.items()))


def _select(
    decisions: Iterable[Decision],
    device: Device | str | None,
    op: str | None,
    kernels: Collection[str] | None,
    direction: str | None,
) -> list[Decision]:
    """What fits, of each op's newest contract, with the ranks closed up."""
    import dataclasses

    groups: dict[tuple, list[Decision]] = defaultdict(list)
    newest: dict[str, int] = defaultdict(int)
    for d in decisions:
        names = (d.device.digest, d.device.variant, d.device.family)
        wanted = device.digest if isinstance(device, Device) else device
        if wanted is not None and wanted not in names:
            continue
        if op not in (None, d.op) or direction not in (None, d.direction):
            continue
        if kernels is not None and not {d.kernel, d.kernel.partition("/")[2]} & set(kernels):
            continue
        newest[d.op] = max(newest[d.op], d.contract)
        groups[d.device.digest, d.signature, d.direction].append(d)
    return [
        dataclasses.replace(d, rank=rank)
        for group in groups.values()
        for rank, d in enumerate(sorted(group, key=lambda d: d.rank))
        if d.contract == newest[d.op]
    ]


def _to_row(decision: Decision) -> Row:
    return Row(
        op=decision.op,
        direction=decision.direction,
        device=decision.device.digest,
        signature=decision.signature.text,
        kernel=decision.kernel.partition("/")[2],
        rank=decision.rank,
        config=decision.config,
        state=str(decision.rule),
        env=decision.environment.digest,
        median_ns=decision.median_ns,
        heuristic_ns=decision.heuristic_ns,
        gain_ppm=None if decision.gain is None else _ppm(decision.gain - 1),
        regret_ppm=None if decision.regret_bound is None else _ppm(decision.regret_bound),
        error_ppm=None if decision.worst_error is None else _ppm(decision.worst_error),
        samples=decision.samples,
    )


def _ppm(value: float) -> int:
    return round(value * PPM)


def _shard_path(family: str, row: Row) -> str:
    if not _WORD.fullmatch(family):
        raise UsageError(f"the device family {family!r} cannot be part of a file's name")
    return f"shards/{family}/{row.op}.{row.direction}.json"


def _shard_text(rows: Iterable[Row]) -> str:
    lines = []
    for row in sorted(rows, key=lambda r: (r.signature, r.device, r.rank)):
        data: dict[str, Any] = asdict(row)
        del data["op"], data["direction"]  # the file's name says them
        lines.append(canonical_json(data))
    return "[\n" + ",\n".join(lines) + "\n]\n"


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _tool_version() -> str:
    import importlib.metadata

    try:
        return importlib.metadata.version("attn-tune")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def _check_target(path: Path, overwrite: bool) -> None:
    if not path.exists() and not path.is_symlink():
        return
    if not overwrite:
        raise StorageError(f"{path} exists; choose another path, or overwrite it on purpose")
    empty = path.is_dir() and not any(path.iterdir())
    if path.is_dir() == (path.suffix == SUFFIX) or not (is_pack(path) or empty):
        raise StorageError(f"{path} is not a pack of this kind, so it is not overwritten")


def _write(path: Path, files: Mapping[str, bytes]) -> None:
    """Writes aside, verifies, and moves into place."""
    stem = f".{path.name}.{secrets.token_hex(8)}"
    draft, old = path.with_name(stem + ".new"), path.with_name(stem + ".old")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == SUFFIX:
            _write_file(draft, _zip(files))
        else:
            for name, data in files.items():
                (draft / name).parent.mkdir(parents=True, exist_ok=True)
                _write_file(draft / name, data)
        read_pack(draft)
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


def _write_file(path: Path, data: bytes) -> None:
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _zip(files: Mapping[str, bytes]) -> bytes:
    """A zip with fixed dates and modes. Stored: compressed bytes would differ between builds of zlib."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, data in sorted(files.items()):
            info = zipfile.ZipInfo(name, _EPOCH)
            info.create_system = 3
            info.external_attr = 0o100644 << 16
            archive.writestr(info, data)
    return buffer.getvalue()
