"""A lockfile: what every question of one job was answered, so that a later job gets exactly the same.

One JSON object, one answer a line, sorted. A job that runs with it asks nothing else; whatever it lacks, and
whatever has changed since in the kernels, is an error.
"""

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from attn_tune.packs.plain_files import write_whole
from attn_tune.packs.strict_json import parse_json
from attn_tune.schema.device import Device
from attn_tune.schema.digest import canonical_json, digest_text
from attn_tune.schema.errors import IntegrityError, StorageError

LOCKFILE = "ATTN_TUNE_LOCKFILE"
FORMAT = 1

type Key = tuple[str, str, str, str, str]

_MAX_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One question and its answer.

    Attributes:
      asked: the kernel that the caller named, ``""`` for any.
      device: as ``device_name`` spells it.
      contract, source_hash: of the op and of the kernel, when it was frozen.
      rung, source, pack_digest: where the answer came from then.
      repeatable: False where runs of the config on equal inputs gave different bits; None where that is unknown.
    """

    op: str
    direction: str
    signature: str
    asked: str
    device: str
    kernel: str
    config: Mapping[str, Any]
    contract: int
    source_hash: str
    rung: str
    source: str = ""
    pack_digest: str = ""
    repeatable: bool | None = None

    @property
    def key(self) -> Key:
        """What it answers."""
        return (self.op, self.direction, self.signature, self.asked, self.device)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Lockfile:
    """A verified lockfile; ``environment`` is evidence, never compared."""

    path: str
    digest: str
    environment: Mapping[str, str]
    entries: Mapping[Key, Entry]


def device_name(device: Device) -> str:
    """What a lockfile knows a device by: ``cuda/sm_90/nvidia-h200``, with ``/mig-1g.18gb`` for a slice.

    Clocks and power limits are not in it: they do not change what a config computes, and differ between boards.
    """
    parts = (device.platform, device.family, device.variant, device.partition)
    return "/".join(part for part in parts if part)


def write_lockfile(
    path: str | os.PathLike[str], entries: Iterable[Entry], *, tool: str, environment: Mapping
) -> Lockfile:
    """Writes ``entries``, whole or not at all; equal entries give equal bytes.

    Raises:
      StorageError: it cannot be written.
    """
    ordered = sorted(entries, key=lambda entry: entry.key)
    lines = [canonical_json(asdict(entry)) for entry in ordered]
    digest = digest_text("\n".join(lines))
    head = {
        "digest": digest,
        "environment": dict(environment),
        "format": FORMAT,
        "tool": tool,
    }
    text = (
        json.dumps(head, sort_keys=True, indent=1)[:-2]
        + ',\n "entries": [\n'
        + ",\n".join(lines)
        + "\n ]\n}\n"
    )
    target = Path(path)
    try:
        write_whole(target, text.encode())
    except OSError as error:
        raise StorageError(f"cannot write the lockfile {target}: {error}") from None
    return read_lockfile(target)


def read_lockfile(path: str | os.PathLike[str]) -> Lockfile:
    """Reads and verifies the lockfile at ``path``.

    Raises:
      StorageError: it cannot be read.
      IntegrityError: anything is wrong with it; the sentence says what.
    """
    where = f"lockfile {path}"
    try:
        with open(path, "rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise StorageError(f"cannot read the {where}: {error}") from None
    if len(data) > _MAX_BYTES:
        raise IntegrityError(f"{where} is larger than {_MAX_BYTES} bytes")
    parsed = parse_json(data, where)
    if not isinstance(parsed, dict) or parsed.get("format") != FORMAT:
        raise IntegrityError(f"{where} is not of format {FORMAT}")
    items, environment = parsed.get("entries"), parsed.get("environment")
    if not isinstance(items, list) or not isinstance(environment, dict):
        raise IntegrityError(f"{where} lacks its entries or its environment")
    entries = [_entry(item, f"{where}: entry {number}") for number, item in enumerate(items, 1)]
    digest = digest_text("\n".join(canonical_json(item) for item in items))
    if digest != parsed.get("digest"):
        raise IntegrityError(f"{where} does not have the digest it claims; it was changed")
    by_key = {entry.key: entry for entry in entries}
    if len(by_key) != len(entries):
        raise IntegrityError(f"{where} answers one question twice")
    return Lockfile(
        path=str(path),
        digest=digest,
        environment={str(k): str(v) for k, v in environment.items()},
        entries=by_key,
    )


_OTHERS = ("config", "contract", "repeatable")
_TEXTS = tuple(f.name for f in fields(Entry) if f.name not in _OTHERS)


def _entry(item: Any, where: str) -> Entry:
    if not isinstance(item, dict) or set(item) != {*_TEXTS, *_OTHERS}:
        raise IntegrityError(f"{where} must have exactly the known fields")
    for name in _TEXTS:
        if not isinstance(item[name], str):
            raise IntegrityError(f"{where}: {name!r} must be a text")
    if not isinstance(item["config"], dict) or type(item["contract"]) is not int:
        raise IntegrityError(f"{where}: 'config' must be an object and 'contract' a count")
    if type(item["repeatable"]) not in (bool, type(None)):
        raise IntegrityError(f"{where}: 'repeatable' must be true, false or null")
    return Entry(**item)
