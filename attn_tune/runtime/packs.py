"""Reads a config pack, a folder or one ``.atpack`` file, and believes nothing in it before it is proven.

Layout: ``manifest.json``, ``shards/<family>/<op>.<direction>.json`` (a JSON array, one row a line),
``SHA256SUMS`` over all of these, and perhaps ``SHA256SUMS.sig`` (see ``signing``) over the sums.
"""

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from attn_tune.runtime.archive import MANIFEST, SIGNED, SUMS, check_path, read_files
from attn_tune.runtime.devices import device_from_identity
from attn_tune.runtime.rows import digest_lines, row_from_json
from attn_tune.runtime.signing import Signer, check_trusted, must_be_signed, read_signers
from attn_tune.runtime.strict_json import parse_json
from attn_tune.runtime.tables import Rows, Table, parsed_table, plain_table
from attn_tune.schema.device import Device
from attn_tune.schema.digest import digest_text
from attn_tune.schema.environment import Environment
from attn_tune.schema.errors import IntegrityError, UsageError
from attn_tune.schema.trial import DIRECTIONS

FORMAT = 1

_MAX_ERROR = 2000
_SHARD = re.compile(r"shards/([A-Za-z0-9_.+-]+)/([A-Za-z0-9_]+)\.([a-z]+)\.json")
_SUM_LINE = re.compile(r"([0-9a-f]{64})  (.{1,200})")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False, repr=False)
class Pack:
    """A verified pack. Packs are equal if their digests are.

    Attributes:
      digest: names all of its bytes.
      decision_digest: names what it decides, without the evidence.
      devices, environments: the tables that rows point into, by digest.
      contracts: per kernel id (``"op/name"``), the contract version of the op it was tuned under.
      rows: in the order of the shards.
      gate: what the release gate found, as the manifest says it; empty for a pack without one.
      signers: the keys that signed it, if any. That they did is proven by ``signing.verify``, not by being here.
      path: where it was read from.
    """

    name: str
    version: str
    tool: str
    digest: str
    decision_digest: str
    devices: Mapping[str, Device]
    environments: Mapping[str, Environment]
    contracts: Mapping[str, int]
    rows: Rows
    gate: Mapping[str, Any] = MappingProxyType({})
    signers: tuple[Signer, ...] = ()
    path: str = ""

    def __str__(self) -> str:
        return f"{self.name} {self.version}"

    def __repr__(self) -> str:
        return f"Pack({self}, {len(self.rows)} rows, {self.digest})"

    # Packs are part of JAX's jit key: the same bytes read twice must not retrace.
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pack) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)


def read_pack(path: str | os.PathLike[str], *, signed: bool | None = None) -> Pack:
    """Reads and verifies the pack at ``path``.

    ``signed`` says whether it must bear the signature of a trusted key; None leaves that to the environment variable
    ``ATTN_TUNE_REQUIRE_SIGNED``.

    Raises:
      StorageError: there is nothing at ``path``, or it cannot be read.
      IntegrityError: anything at all is wrong with it; the sentence says what.
      UsageError: it must be signed, and the package ``cryptography`` is not installed.
    """
    files = read_files(path)
    pack = pack_from_files(files, str(Path(path)))
    if must_be_signed(os.environ) if signed is None else signed:
        check_trusted(files[SUMS], pack.signers, os.environ, f"pack {pack.path}")
    return pack


def pack_from_files(files: Mapping[str, bytes], path: str = "") -> Pack:
    """Verifies the files of a pack, given as bytes by their paths inside.

    Raises:
      IntegrityError: as ``read_pack``. The sentence is one line of bounded length, whatever the pack holds.
    """
    try:
        return _verified(files, path)
    except IntegrityError as error:
        text = str(error)
        if text.isprintable() and len(text) <= _MAX_ERROR:
            raise
        text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
        raise IntegrityError(text[:_MAX_ERROR]) from None


def _verified(files: Mapping[str, bytes], path: str) -> Pack:
    where = f"pack {path}" if path else "pack"
    for name in files:
        check_path(name)
    sums = _check_sums(files, where)
    if MANIFEST not in files:
        raise IntegrityError(f"{where} has no {MANIFEST}")
    manifest = parse_json(files[MANIFEST], f"{where}: {MANIFEST}")
    if not isinstance(manifest, dict):
        raise IntegrityError(f"{where}: {MANIFEST} is not an object")
    _check_format(manifest, where)
    devices = _devices(manifest, where)
    environments = _environments(manifest, where)
    contracts = _contracts(manifest, where)
    tables = _tables(manifest, files, sums, where)
    _check_rows(tables, devices, environments, contracts, where)
    digest = digest_lines(line for table in tables for line in table.lines)
    if digest != _text(manifest, "decision_digest", where):
        raise IntegrityError(f"{where}: its rows do not have the decision digest it claims")
    rows = Rows(tables)
    if _count(manifest, "rows", where) != len(rows):
        raise IntegrityError(
            f"{where}: it has {len(rows)} rows, the manifest says {manifest['rows']}"
        )
    return Pack(
        name=_text(manifest, "name", where),
        version=_text(manifest, "version", where),
        tool=_text(manifest, "tool", where),
        digest=digest_text(files[SUMS].decode()),
        decision_digest=digest,
        devices=devices,
        environments=environments,
        contracts=contracts,
        rows=rows,
        gate=_gate(manifest, where),
        signers=read_signers(files[SIGNED], where) if SIGNED in files else (),
        path=path,
    )


def _check_sums(files: Mapping[str, bytes], where: str) -> dict[str, str]:
    """Exactly the listed files, each with its sum; returns the sums by file."""
    if SUMS not in files:
        raise IntegrityError(f"{where} has no {SUMS}")
    try:
        lines = files[SUMS].decode("ascii").split("\n")
    except UnicodeDecodeError:
        raise IntegrityError(f"{where}: {SUMS} is not plain text") from None
    if lines.pop() != "":
        raise IntegrityError(f"{where}: {SUMS} does not end with a newline; it was cut short")
    sums: dict[str, str] = {}
    for line in lines:
        match = _SUM_LINE.fullmatch(line)
        if match is None or match.group(2) in sums or match.group(2) in (SUMS, SIGNED):
            raise IntegrityError(f"{where}: {SUMS} has the bad line {line[:100]!r}")
        sums[match.group(2)] = match.group(1)
    actual = set(files) - {SUMS, SIGNED}
    if missing := sorted(set(sums) - actual):
        raise IntegrityError(f"{where} lacks {missing[0]!r}, which {SUMS} lists")
    if extra := sorted(actual - set(sums)):
        raise IntegrityError(f"{where} holds {extra[0]!r}, which {SUMS} does not list")
    for name, expected in sums.items():
        if hashlib.sha256(files[name]).hexdigest() != expected:
            raise IntegrityError(
                f"{where}: the checksum of {name!r} does not match; it was changed"
            )
    return sums


def _check_format(manifest: dict[str, Any], where: str) -> None:
    written, needed = _count(manifest, "format", where), _count(manifest, "min_reader", where)
    if needed > FORMAT:
        raise IntegrityError(
            f"{where} was written by a newer attn-tune (format {written}, this one reads {FORMAT}); upgrade attn-tune"
        )
    if written < 1 or needed < 1 or needed > written:
        raise IntegrityError(f"{where}: format {written} with min_reader {needed} cannot be")


def _devices(manifest: dict[str, Any], where: str) -> dict[str, Device]:
    found = {}
    for digest, identity in _table(manifest, "devices", where).items():
        try:
            device = device_from_identity(identity)
        except UsageError as error:
            raise IntegrityError(f"{where}: {error!s:.500}") from None
        if device.digest != digest:
            raise IntegrityError(
                f"{where}: device {device!s:.100} does not have the digest {digest[:100]!r}"
            )
        found[digest] = device
    return found


def _environments(manifest: dict[str, Any], where: str) -> dict[str, Environment]:
    known = Environment.__dataclass_fields__
    found = {}
    for digest, data in _table(manifest, "environments", where).items():
        if set(data) != set(known) or not all(isinstance(v, str) for v in data.values()):
            raise IntegrityError(
                f"{where}: environment {digest[:100]!r} must have exactly the known fields"
            )
        environment = Environment(**data)
        if environment.digest != digest:
            raise IntegrityError(
                f"{where}: an environment does not have the digest {digest[:100]!r}"
            )
        found[digest] = environment
    return found


def _contracts(manifest: dict[str, Any], where: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for entry in _list(manifest, "kernels", where):
        if not isinstance(entry, dict):
            raise IntegrityError(f"{where}: 'kernels' must hold objects")
        kernel = _text(entry, "kernel", where)
        if kernel in found or "/" not in kernel:
            raise IntegrityError(f"{where}: kernel {kernel[:100]!r} must be op/name, once")
        found[kernel] = _count(entry, "contract", where)
    return found


def _gate(manifest: dict[str, Any], where: str) -> Mapping[str, Any]:
    found = manifest.get("gate", {})
    if not isinstance(found, dict):
        raise IntegrityError(f"{where}: 'gate' of the manifest must be an object")
    return MappingProxyType(found)


def _tables(
    manifest: dict[str, Any], files: Mapping[str, bytes], sums: Mapping[str, str], where: str
) -> list[Table]:
    tables: list[Table] = []
    listed: set[str] = set()
    for shard in _list(manifest, "shards", where):
        if not isinstance(shard, dict):
            raise IntegrityError(f"{where}: 'shards' must hold objects")
        path = _text(shard, "path", where)
        match = _SHARD.fullmatch(path)
        if match is None or match.group(3) not in DIRECTIONS or path in listed or path not in files:
            raise IntegrityError(
                f"{where}: shard {path[:200]!r} is misnamed, missing or listed twice"
            )
        listed.add(path)
        # The sums are of the very bytes that are here: they were just checked.
        if sums[path] != _text(shard, "sha256", where):
            raise IntegrityError(f"{where}: the manifest's checksum of {path!r} does not match")
        table = _table_of(
            files[path], f"{where}: {path}", op=match.group(2), direction=match.group(3)
        )
        if len(table) != _count(shard, "rows", where):
            raise IntegrityError(f"{where}: {path} is not an array of the rows the manifest says")
        tables.append(table)
    if stray := sorted(set(files) - listed - {MANIFEST, SUMS, SIGNED}):
        raise IntegrityError(f"{where} holds {stray[0]!r}, which its manifest does not name")
    return tables


def _table_of(data: bytes, where: str, *, op: str, direction: str) -> Table:
    if table := plain_table(data, op=op, direction=direction):
        return table
    items = parse_json(data, where)
    if not isinstance(items, list):
        raise IntegrityError(f"{where} is not an array of the rows the manifest says")
    rows = []
    for number, item in enumerate(items, start=1):
        try:
            rows.append(row_from_json(item, op=op, direction=direction))
        except IntegrityError as error:
            raise IntegrityError(f"{where} row {number}: {error}") from None
    return parsed_table(rows, op=op, direction=direction)


def _check_rows(
    tables: list[Table],
    devices: Mapping[str, Device],
    environments: Mapping[str, Environment],
    contracts: Mapping[str, int],
    where: str,
) -> None:
    """What rows point to is there, and no problem is answered twice."""
    known = {tuple(kernel.split("/", 1)) for kernel in contracts}
    answered: dict[str, set[tuple[str, str, str]]] = {way: set() for way in DIRECTIONS}
    ranked: dict[str, set[tuple[str, str, int]]] = {way: set() for way in DIRECTIONS}
    for t in tables:
        kernels, ranks = answered[t.direction], ranked[t.direction]
        count = len(kernels) + len(t)
        kernels.update(zip(t.devices, t.signatures, t.kernels, strict=True))
        ranks.update(zip(t.devices, t.signatures, t.ranks, strict=True))
        if not set(t.devices) <= devices.keys():
            wrong = "a row is of a device that the manifest does not describe"
        elif not set(t.envs) <= environments.keys():
            wrong = "a row is of an environment that the manifest does not describe"
        elif not {(t.op, kernel) for kernel in t.kernels} <= known:
            wrong = "a row is of a kernel that the manifest does not list"
        elif len(kernels) != count or len(ranks) != count:
            wrong = f"{_twice(tables)} appears twice for one device"
        else:
            continue
        raise IntegrityError(f"{where}: {t.op}.{t.direction}: {wrong}")


def _twice(tables: list[Table]) -> str:
    """The first row whose kernel or rank was there before."""
    seen: set[tuple[str | int, ...]] = set()
    for t in tables:
        for row in zip(t.devices, t.signatures, t.kernels, t.ranks, strict=True):
            keys = ((*row[:3], t.direction), (*row[:2], row[3], t.direction))
            if not seen.isdisjoint(keys):
                return f"the row {row[1]!r} of kernel {row[2]!r}"
            seen.update(keys)
    return "a row"


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


def _list(data: dict[str, Any], name: str, where: str) -> list[Any]:
    value = data.get(name)
    if not isinstance(value, list):
        raise IntegrityError(f"{where}: {name!r} of the manifest must be a list")
    return value


def _table(data: dict[str, Any], name: str, where: str) -> dict[str, dict[str, Any]]:
    value = data.get(name)
    if not isinstance(value, dict) or not all(isinstance(v, dict) for v in value.values()):
        raise IntegrityError(f"{where}: {name!r} of the manifest must be a table by digest")
    return value
