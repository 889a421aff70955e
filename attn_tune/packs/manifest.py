"""The manifest and the sums of a pack, read with suspicion. Every failure is an IntegrityError that names the pack."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from attn_tune.packs.archive import MANIFEST, QUARANTINE, SIGNED, SUMS
from attn_tune.packs.strict_json import parse_json
from attn_tune.schema.device import Device, device_from_identity
from attn_tune.schema.environment import Environment
from attn_tune.schema.errors import IntegrityError, UsageError
from attn_tune.schema.trial import DIRECTIONS

# The format that this version reads. Packs without a quarantine list are of format 1, which older readers read too.
FORMAT = 2

_SUM_LINE = re.compile(r"([0-9a-f]{64})  (.{1,200})")
_SHARD = re.compile(r"shards/([A-Za-z0-9_.+-]+)/([A-Za-z0-9_]+)\.([a-z]+)\.json")


@dataclass(frozen=True, slots=True)
class ShardEntry:
    """What the manifest says of one shard.

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
      where: the pack as errors name it.
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

    where: str
    name: str
    version: str
    tool: str
    devices: Mapping[str, Device]
    environments: Mapping[str, Environment]
    contracts: Mapping[str, int]
    entries: tuple[ShardEntry, ...]
    claimed_digest: str
    count: int
    gate: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""
    listed: int | None = None


def read_sums(data: bytes, names: Collection[str], where: str) -> dict[str, str]:
    """The sums by file, of exactly the files that are there. The files themselves are held against them later.

    Raises:
      IntegrityError: it is not a list of sums, or lists other files.
    """
    try:
        lines = data.decode("ascii").split("\n")
    except UnicodeDecodeError:
        raise IntegrityError(f"{where}: {SUMS} is not plain text") from None
    if lines.pop() != "":
        raise IntegrityError(f"{where}: {SUMS} does not end with a newline; it was cut short")
    sums: dict[str, str] = {}
    for line in lines:
        match = _SUM_LINE.fullmatch(line)
        if match is None or match[2] in sums or match[2] in (SUMS, SIGNED):
            raise IntegrityError(f"{where}: {SUMS} has the bad line {line[:100]!r}")
        sums[match[2]] = match[1]
    actual = set(names) - {SUMS, SIGNED}
    if missing := sorted(set(sums) - actual):
        raise IntegrityError(f"{where} lacks {missing[0]!r}, which {SUMS} lists")
    if extra := sorted(actual - set(sums)):
        raise IntegrityError(f"{where} holds {extra[0]!r}, which {SUMS} does not list")
    if MANIFEST not in sums:
        raise IntegrityError(f"{where} has no {MANIFEST}")
    return sums


def read_manifest(data: bytes, sums: Mapping[str, str], where: str) -> Manifest:
    """The manifest of a pack of which the files have ``sums``.

    Raises:
      IntegrityError: it is broken, of a newer format, or names other files than there are.
    """
    said = parse_json(data, f"{where}: {MANIFEST}")
    if not isinstance(said, dict):
        raise IntegrityError(f"{where}: {MANIFEST} is not an object")
    _check_format(said, where)
    entries = tuple(_entries(said, sums, where))
    if stray := sorted(set(sums) - {entry.path for entry in entries} - {MANIFEST, QUARANTINE}):
        raise IntegrityError(f"{where} holds {stray[0]!r}, which its manifest does not name")
    return Manifest(
        where=where,
        name=_text(said, "name", where),
        version=_text(said, "version", where),
        tool=_text(said, "tool", where),
        devices=_devices(said, where),
        environments=_environments(said, where),
        contracts=_contracts(said, where),
        entries=entries,
        claimed_digest=_text(said, "decision_digest", where),
        count=_count(said, "rows", where),
        gate=_of_type(said, "gate", dict, where, {}),
        note=_text(said, "note", where) if "note" in said else "",
        listed=_listed(said, sums, where),
    )


def _check_format(said: dict[str, Any], where: str) -> None:
    written, needed = _count(said, "format", where), _count(said, "min_reader", where)
    if needed > FORMAT:
        raise IntegrityError(
            f"{where} was written by a newer attn-tune (format {written}, this one reads {FORMAT}); upgrade attn-tune"
        )
    if not 1 <= needed <= written:
        raise IntegrityError(f"{where}: format {written} with min_reader {needed} cannot be")


def _entries(said: dict[str, Any], sums: Mapping[str, str], where: str) -> list[ShardEntry]:
    found: dict[str, ShardEntry] = {}
    for item in _objects(said, "shards", where):
        path, sha256 = _text(item, "path", where), _text(item, "sha256", where)
        match = _SHARD.fullmatch(path)
        if match is None or match[3] not in DIRECTIONS or path in found or path not in sums:
            raise IntegrityError(
                f"{where}: shard {path[:200]!r} is misnamed, missing or listed twice"
            )
        if sums[path] != sha256:
            raise IntegrityError(f"{where}: the manifest's checksum of {path!r} does not match")
        found[path] = ShardEntry(
            path, match[1], match[2], match[3], _count(item, "rows", where), sha256
        )
    return list(found.values())


def _devices(said: dict[str, Any], where: str) -> dict[str, Device]:
    found = {}
    for digest, identity in _table(said, "devices", where).items():
        try:
            found[digest] = device = device_from_identity(identity)
        except UsageError as error:
            raise IntegrityError(f"{where}: {error!s:.500}") from None
        if device.digest != digest:
            raise IntegrityError(
                f"{where}: device {device!s:.100} does not have the digest {digest[:100]!r}"
            )
    return found


def _environments(said: dict[str, Any], where: str) -> dict[str, Environment]:
    known = set(Environment.__dataclass_fields__)
    found = {}
    for digest, data in _table(said, "environments", where).items():
        if set(data) != known or not all(isinstance(v, str) for v in data.values()):
            raise IntegrityError(
                f"{where}: environment {digest[:100]!r} must have exactly the known fields"
            )
        found[digest] = Environment(**data)
        if found[digest].digest != digest:
            raise IntegrityError(
                f"{where}: an environment does not have the digest {digest[:100]!r}"
            )
    return found


def _contracts(said: dict[str, Any], where: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for entry in _objects(said, "kernels", where):
        kernel = _text(entry, "kernel", where)
        if kernel in found or "/" not in kernel:
            raise IntegrityError(f"{where}: kernel {kernel[:100]!r} must be op/name, once")
        found[kernel] = _count(entry, "contract", where)
    return found


def _listed(said: dict[str, Any], sums: Mapping[str, str], where: str) -> int | None:
    listed = _of_type(said, "quarantine", dict, where)
    if (listed is None) != (QUARANTINE not in sums):
        raise IntegrityError(
            f"{where}: its manifest names a quarantine list if, and only if, it holds {QUARANTINE}"
        )
    if listed is not None and _text(listed, "sha256", where) != sums[QUARANTINE]:
        raise IntegrityError(f"{where}: the manifest's checksum of {QUARANTINE} does not match")
    return None if listed is None else _count(listed, "entries", where)


def _text(data: dict[str, Any], name: str, where: str) -> str:
    value = data.get(name)
    if not isinstance(value, str) or not 0 < len(value) <= 1000 or not value.isprintable():
        raise IntegrityError(f"{where}: {name!r} of the manifest must be a text, got {value!r:.60}")
    return value


def _count(data: dict[str, Any], name: str, where: str) -> int:
    value = data.get(name)
    if type(value) is not int or value < 0:
        raise IntegrityError(
            f"{where}: {name!r} of the manifest must be a count, got {value!r:.60}"
        )
    return value


def _of_type(data: dict[str, Any], name: str, kind: type, where: str, default: Any = None) -> Any:
    value = data.get(name, default)
    if value is not default and not isinstance(value, kind):
        words = {dict: "an object", list: "a list"}[kind]
        raise IntegrityError(f"{where}: {name!r} of the manifest must be {words}")
    return value


def _objects(data: dict[str, Any], name: str, where: str) -> list[dict[str, Any]]:
    value = _of_type(data, name, list, where)
    if value is None or not all(isinstance(v, dict) for v in value):
        raise IntegrityError(f"{where}: {name!r} of the manifest must be a list of objects")
    return value


def _table(data: dict[str, Any], name: str, where: str) -> dict[str, dict[str, Any]]:
    value = _of_type(data, name, dict, where)
    if value is None or not all(isinstance(v, dict) for v in value.values()):
        raise IntegrityError(f"{where}: {name!r} of the manifest must be a table by digest")
    return value
