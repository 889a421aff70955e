"""Writers of packs. Same decisions and note, same bytes: nothing else says when, where or by whom one was made."""

import contextlib
import hashlib
import json
import os
import re
import secrets
import shutil
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from attn_tune.packs.archive import HEAD, MANIFEST, QUARANTINE, SIGNED, SUFFIX, SUMS, is_pack, list_files, zip_bytes
from attn_tune.packs.override_entries import Entry
from attn_tune.packs.override_files import OverridesFile
from attn_tune.packs.plain_files import exchange, write_whole
from attn_tune.packs.reader import Pack, open_pack, read_pack
from attn_tune.packs.rows import Row, decision_digest
from attn_tune.packs.shards import shard_data
from attn_tune.packs.signing import sign, signatures_fit
from attn_tune.schema.decision import Decision
from attn_tune.schema.device import Device
from attn_tune.schema.environment import Environment
from attn_tune.schema.errors import IntegrityError, StorageError, UsageError

MAX_NOTE = 1000

_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,99}")


def check_word(what: str, word: str) -> None:
    """Refuses a name or version that a pack cannot have.

    Raises:
      UsageError: it is one.
    """
    if not _WORD.fullmatch(word):
        raise UsageError(f"a pack's {what} is letters, digits and _.+-, not {word!r}; give another (--{what})")


def check_note(note: str) -> str:
    """The note on one line, as the manifest holds it.

    Raises:
      UsageError: it is empty, too long, or has characters that cannot be printed.
    """
    line = " ".join(note.split())
    if not line or len(line) > MAX_NOTE or not line.isprintable():
        raise UsageError(f"a pack's note is a line of 1 to {MAX_NOTE} characters, got {note!r:.80}")
    return line


def check_beside_packs(path: Path, *, follow_links: bool) -> None:
    """Refuses a path within a pack, which another file would break, and one whose folder cannot be found.

    Raises:
      StorageError: it is one.
    """
    try:
        folder = path.parent.resolve() if follow_links else path.parent.absolute()
    except OSError as error:
        raise StorageError(f"{path} lies in a folder that cannot be read: {error.strerror}") from None
    if around := next((one for one in (folder, *folder.parents) if is_pack(one)), None):
        raise StorageError(f"{path} lies within the pack {around}; choose a path beside it")


def check_target(path: Path, *, overwrite: bool) -> None:
    """Refuses a path that is taken; with ``overwrite``, one that holds anything but a pack of the same kind.

    Raises:
      StorageError: it is, or it lies within a pack, which another file would break.
    """
    check_beside_packs(path, follow_links=False)
    if not path.exists() and not path.is_symlink():
        return
    if not overwrite:
        raise StorageError(f"{path} exists; choose another path, or replace it with --overwrite")
    empty = path.is_dir() and not any(path.iterdir())
    if path.is_dir() == (path.suffix == SUFFIX) or not (empty or (is_pack(path) and not _is_foreign(path))):
        raise StorageError(
            f"{path} is not a pack of this kind, or holds other files too, so it is not overwritten; move it away, or "
            "choose another path"
        )


def _is_foreign(path: Path) -> bool:
    """Whether something has only the name of a pack, or holds files that no pack has, which would be lost."""
    try:
        names = set(list_files(path).names)
    except (IntegrityError, OSError):
        return True
    return not {MANIFEST, SUMS} <= names or any(n not in HEAD and not n.startswith("shards/") for n in names)


def pack_files(
    decisions: Iterable[Decision],
    *,
    name: str,
    version: str,
    gate: Mapping[str, Any] | None = None,
    quarantine: Iterable[Entry] = (),
    note: str = "",
) -> dict[str, bytes]:
    """The files of a pack of ``decisions``, by their paths inside; their order does not matter.

    Args:
      gate: the manifest's entry about the release gate.
      quarantine: the list that the pack carries.
      note: a line for people.
    """
    decisions = list(decisions)
    return files_of_rows(
        map(Row.of, decisions),
        name=name,
        version=version,
        devices={d.device.digest: d.device for d in decisions},
        environments={d.environment.digest: d.environment for d in decisions},
        contracts={d.kernel: d.contract for d in decisions},
        gate=gate,
        quarantine=quarantine,
        note=note,
    )


def files_of_rows(
    rows: Iterable[Row],
    *,
    name: str,
    version: str,
    devices: Mapping[str, Device],
    environments: Mapping[str, Environment],
    contracts: Mapping[str, int],
    gate: Mapping[str, Any] | None = None,
    quarantine: Iterable[Entry] = (),
    note: str = "",
) -> dict[str, bytes]:
    """The files of a pack of ``rows``, by their paths inside; the tables may hold more than the rows need."""
    rows = list(rows)
    shards: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        shards[_shard_path(devices[row.device].family, row)].append(row)
    files = {path: shard_data(group) for path, group in sorted(shards.items())}
    entries = {entry.line: entry for entry in quarantine}
    # A reader of format 1 knows no lists, and must not use a pack without its own.
    needed = 2 if entries else 1
    manifest: dict[str, Any] = {
        "format": needed,
        "min_reader": needed,
        "name": name,
        "version": version,
        "tool": f"attn-tune {_tool_version()}",
        "devices": {digest: devices[digest].identity for digest in {r.device for r in rows}},
        "environments": {digest: asdict(environments[digest]) for digest in {r.env for r in rows}},
        "kernels": [
            {"kernel": kernel, "contract": contracts[kernel]} for kernel in sorted({f"{r.op}/{r.kernel}" for r in rows})
        ],
        "shards": [{"path": path, "rows": len(shards[path]), "sha256": _sha256(data)} for path, data in files.items()],
        "decision_digest": decision_digest(rows),
        "rows": len(rows),
    }
    if gate is not None:
        manifest["gate"] = dict(gate)
    if note:
        manifest["note"] = note
    if entries:
        files[QUARANTINE] = OverridesFile(entries=tuple(entries.values())).text.encode()
        manifest["quarantine"] = {
            "entries": len(entries),
            "sha256": _sha256(files[QUARANTINE]),
        }
    text = json.dumps(manifest, sort_keys=True, indent=1, allow_nan=False) + "\n"
    files[MANIFEST] = text.encode()
    sums = "".join(f"{_sha256(files[path])}  {path}\n" for path in sorted(files))
    files[SUMS] = sums.encode()
    return dict(sorted(files.items()))


def signed_files(files: Mapping[str, bytes], pack: Pack, private_pem: bytes) -> dict[str, bytes]:
    """``files`` with one more signature, in place of an older one by the same key. Those that do not fit are left out.

    Raises:
      UsageError: as ``sign``.
    """
    signer = sign(files[SUMS], private_pem)
    # With a wrong one, of another pack or forged, the pack that is signed now would not pass a check.
    fits = signatures_fit(files[SUMS], pack.signers)
    others = [s for s in pack.signers if s.key != signer.key and fits[s.key]]
    return {**files, SIGNED: "".join(s.line for s in sorted([*others, signer])).encode()}


def write_pack(path: Path, files: Mapping[str, bytes]) -> Pack:
    """Writes ``files`` aside, reads them back, and moves them into place over the pack that is there, if any.

    A reader finds the old pack or the new one, also when this process is killed. Where the system cannot exchange two
    folders, a kill may leave the old folder beside its place, with a name that ends in ``.old``.

    Raises:
      StorageError: it cannot be written.
      IntegrityError: the files are not a pack.
    """
    path = path if path.name else path.resolve()
    stem = f".{path.name}.{secrets.token_hex(8)}"
    draft, old = path.with_name(stem + ".new"), path.with_name(stem + ".old")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == SUFFIX:
            write_whole(draft, zip_bytes(files))
        else:
            for name, data in files.items():
                (draft / name).parent.mkdir(parents=True, exist_ok=True)
                write_whole(draft / name, data)
        read_pack(draft, signed=False)
        if not (path.is_dir() and _exchanged(draft, path)):
            if path.is_dir():
                path.rename(old)
            os.replace(draft, path)
        return open_pack(path, signed=False)
    except OSError as error:
        if isinstance(error, StorageError):
            raise
        raise StorageError(f"{path} cannot be written: {error.strerror or error}") from error
    finally:
        if path.suffix == SUFFIX:
            with contextlib.suppress(OSError):  # what failed before is the error to tell
                draft.unlink(missing_ok=True)
        else:
            shutil.rmtree(draft, ignore_errors=True)
            if path.exists():  # else the old pack is the only one there is
                shutil.rmtree(old, ignore_errors=True)


def _exchanged(one: Path, other: Path) -> bool:
    try:
        exchange(one, other)
    except OSError:
        return False
    return True


def _shard_path(family: str, row: Row) -> str:
    if not _WORD.fullmatch(family):
        raise UsageError(f"the device family {family!r} cannot be part of a file's name")
    return f"shards/{family}/{row.op}.{row.direction}.json"


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _tool_version() -> str:
    import importlib.metadata

    try:
        return importlib.metadata.version("attn-tune")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
