"""The manifest and the sums of a pack, read with suspicion. Errors name the pack where ``naming`` is entered."""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from attn_tune.packs.archive import MANIFEST, QUARANTINE, SIGNED, SUMS
from attn_tune.packs.strict_json import is_list, parse_json
from attn_tune.schema.config import config_from_dict, is_mapping
from attn_tune.schema.device import Device
from attn_tune.schema.environment import Environment
from attn_tune.schema.errors import IntegrityError, UsageError

# The format that this version reads. Packs without a quarantine list are of format 1, which older readers read too.
FORMAT = 2

_SUM_LINE = re.compile(r"([0-9a-f]{64})  (.{1,200})")
_SHARD = re.compile(r"shards/([A-Za-z0-9_.+-]+)/([A-Za-z0-9_]+)\.([a-z0-9_]+)\.json")
_TEXT = "a text of 1 to 1000 printable characters"
_COUNT = "an integer from 0 to 2**63 - 1"
_KINDS: dict[str, Callable[[Any], bool]] = {
    _TEXT: lambda v: isinstance(v, str) and 0 < len(v) <= 1000 and v.isprintable(),
    _COUNT: lambda v: type(v) is int and 0 <= v < 2**63,
    "an object": is_mapping,
    "a list of objects": lambda v: is_list(v) and all(map(is_mapping, v)),
    "a table of objects by digest": lambda v: is_mapping(v) and all(map(is_mapping, v.values())),
}


@dataclass(frozen=True, slots=True)
class ShardEntry:
    """One shard, as the manifest lists it.

    Attributes:
      path: path of the file inside the pack.
      family: family of the devices of its rows.
      op: name of the op.
      direction: name of the direction.
      count: number of rows.
      sha256: sum of the file.
    """

    path: str
    family: str
    op: str
    direction: str
    count: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The content of a manifest. Rows are held against it.

    Attributes:
      name: name of the pack.
      version: version of the pack.
      tool: name and version of the writer.
      devices: devices by digest.
      environments: environments by digest.
      contracts: by kernel id (``"op/name"``), the contract version of the op it was tuned under.
      entries: the files of rows.
      claimed_digest: digest of what the rows decide, proven with the rows.
      count: number of rows, proven with the rows.
      gate: findings of the release gate; empty for a pack without one.
      note: a line for people; empty without one.
      listed: number of entries of the quarantine list; None without one.
    """

    name: str
    version: str
    tool: str
    devices: Mapping[str, Device]
    environments: Mapping[str, Environment]
    contracts: Mapping[str, int]
    entries: tuple[ShardEntry, ...]
    claimed_digest: str
    count: int
    gate: Mapping[str, Any] = field(default_factory=dict[str, Any])
    note: str = ""
    listed: int | None = None


def merged_parts(gate: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The entries of ``gate`` about the packs that a pack was merged from. Each has a ``gate``, empty if unknown.

    Nothing in a gate was checked: what is no such entry is left out.
    """
    parts = gate.get("merged")
    found = [part for part in parts if is_mapping(part)] if is_list(parts) else []
    return [{**part, "gate": one if is_mapping(one := part.get("gate")) else {}} for part in found]


def read_sums(data: bytes, names: Collection[str]) -> dict[str, str]:
    """The sums by file, of exactly the files that are there. The files themselves are held against them later.

    Raises:
      IntegrityError: it is not a list of sums, or lists other files.
    """
    lines = data.decode("ascii", "replace").split("\n")
    if lines.pop() != "":
        raise IntegrityError(f"{SUMS} does not end with a newline; it was cut short")
    sums: dict[str, str] = {}
    for line in lines:
        match = _SUM_LINE.fullmatch(line)
        if match is None or match[2] in sums or match[2] in (SUMS, SIGNED):
            raise IntegrityError(f"{SUMS} has the bad line {line[:100]!r}")
        sums[match[2]] = match[1]
    actual = set(names) - {SUMS, SIGNED}
    if missing := sorted(set(sums) - actual):
        raise IntegrityError(f"it lacks {missing[0]!r}, which {SUMS} lists")
    if extra := sorted(actual - set(sums)):
        raise IntegrityError(f"it holds {extra[0]!r}, which {SUMS} does not list")
    if MANIFEST not in sums:
        raise IntegrityError(f"it has no {MANIFEST}")
    return sums


def read_manifest(data: bytes, sums: Mapping[str, str]) -> Manifest:
    """The manifest of a pack of which the files have ``sums``.

    Raises:
      IntegrityError: it is broken, of a newer format, or names other files than there are.
    """
    fields = parse_json(data, MANIFEST)
    if not is_mapping(fields):
        raise IntegrityError(f"{MANIFEST} is not an object")
    _check_format(_get(fields, "format", _COUNT), _get(fields, "min_reader", _COUNT))
    entries = _entries(_get(fields, "shards", "a list of objects"), sums)
    if stray := sorted(set(sums) - set(entries) - {MANIFEST, QUARANTINE}):
        raise IntegrityError(f"it holds {stray[0]!r}, which its manifest does not name")
    return Manifest(
        name=_get(fields, "name", _TEXT),
        version=_get(fields, "version", _TEXT),
        tool=_get(fields, "tool", _TEXT),
        devices=_by_digest(fields, "devices", Device),
        environments=_by_digest(fields, "environments", Environment),
        contracts=_contracts(_get(fields, "kernels", "a list of objects")),
        entries=tuple(entries.values()),
        claimed_digest=_get(fields, "decision_digest", _TEXT),
        count=_get(fields, "rows", _COUNT),
        gate=_get({"gate": {}, **fields}, "gate", "an object"),
        note=_get(fields, "note", _TEXT) if "note" in fields else "",
        listed=_listed(fields, sums),
    )


def _get(fields: Mapping[str, Any], name: str, kind: str) -> Any:
    value = fields.get(name)
    if not _KINDS[kind](value):
        raise IntegrityError(f"{name!r} of the manifest must be {kind}, got {value!r:.60}")
    return value


def _check_format(written: int, needed: int) -> None:
    if not 1 <= needed <= written:
        raise IntegrityError(f"'min_reader' of the manifest must be from 1 to its 'format', {written}, got {needed}")
    if needed > FORMAT:
        raise IntegrityError(
            f"it was written by a newer attn-tune (format {written}, this one reads {FORMAT}); upgrade attn-tune"
        )


def _entries(items: list[dict[str, Any]], sums: Mapping[str, str]) -> dict[str, ShardEntry]:
    found: dict[str, ShardEntry] = {}
    for item in items:
        path, count = _get(item, "path", _TEXT), _get(item, "rows", _COUNT)
        match = _SHARD.fullmatch(path)
        if match is None or path in found or path not in sums:
            raise IntegrityError(f"shard {path[:200]!r} is misnamed, missing or listed twice")
        if sums[path] != item.get("sha256"):
            raise IntegrityError(f"the manifest's checksum of {path!r} does not match")
        found[path] = ShardEntry(path, match[1], match[2], match[3], count, sums[path])
    return found


def _by_digest[T: (Device, Environment)](fields: Mapping[str, Any], name: str, kind: type[T]) -> dict[str, T]:
    found: dict[str, T] = {}
    for digest, data in _get(fields, name, "a table of objects by digest").items():
        try:
            found[digest] = made = config_from_dict(kind, data)
        except UsageError as error:
            raise IntegrityError(f"{error!s:.500}") from None
        if made.digest != digest:
            raise IntegrityError(f"one of its {name} does not have the digest {digest[:100]!r}")
    return found


def _contracts(items: list[dict[str, Any]]) -> dict[str, int]:
    found: dict[str, int] = {}
    for item in items:
        kernel = _get(item, "kernel", _TEXT)
        if kernel in found or "/" not in kernel:
            raise IntegrityError(f"kernel {kernel[:100]!r} must be op/name, once")
        found[kernel] = _get(item, "contract", _COUNT)
    return found


def _listed(fields: Mapping[str, Any], sums: Mapping[str, str]) -> int | None:
    listed = fields.get("quarantine")
    if (listed is None) != (QUARANTINE not in sums):
        raise IntegrityError(f"its manifest names a quarantine list if, and only if, it holds {QUARANTINE}")
    if listed is None:
        return None
    if _get(fields, "quarantine", "an object").get("sha256") != sums[QUARANTINE]:
        raise IntegrityError(f"the manifest's checksum of {QUARANTINE} does not match")
    return _get(listed, "entries", _COUNT)
