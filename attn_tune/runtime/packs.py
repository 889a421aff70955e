"""Reads a config pack, a folder or one ``.atpack`` file, and believes nothing in it before it is proven.

Layout: ``manifest.json``, ``shards/<family>/<op>.<direction>.json`` (a JSON array, one row a line), perhaps
``quarantine.json`` (see ``quarantine``), ``SHA256SUMS`` over all of these, and perhaps ``SHA256SUMS.sig`` (see
``signing``) over the sums.

``read_pack`` proves everything. ``open_pack``, for lookups, proves the sums, the manifest and the quarantine list, and
leaves each row to the lookup that uses it: see ``contents``.
"""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attn_tune.runtime.archive import (
    MANIFEST,
    QUARANTINE,
    SIGNED,
    SUMS,
    brief,
    check_path,
    read_files,
)
from attn_tune.runtime.contents import Contents, Shard
from attn_tune.runtime.manifest import (
    check_format,
    check_sums,
    count_of,
    list_of,
    read_contracts,
    read_devices,
    read_environments,
    read_gate,
    read_quarantine_list,
    text_of,
)
from attn_tune.runtime.quarantine import NONE, Quarantine
from attn_tune.runtime.signing import (
    Signer,
    check_not_forged,
    check_trusted,
    must_be_signed,
    read_signers,
)
from attn_tune.runtime.strict_json import parse_json
from attn_tune.runtime.tables import Rows
from attn_tune.schema.device import Device
from attn_tune.schema.digest import digest_text
from attn_tune.schema.environment import Environment
from attn_tune.schema.errors import IntegrityError
from attn_tune.schema.trial import DIRECTIONS

_MAX_ERROR = 2000
_SHARD = re.compile(r"shards/([A-Za-z0-9_.+-]+)/([A-Za-z0-9_]+)\.([a-z]+)\.json")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False, repr=False)
class Pack:
    """A pack. Packs are equal if their digests are.

    Attributes:
      digest: names all of its bytes.
      devices, environments: the tables that rows point into, by digest.
      contracts: per kernel id (``"op/name"``), the contract version of the op it was tuned under.
      contents: the rows, for lookups one by one.
      gate: what the release gate found, as the manifest says it; empty for a pack without one.
      note: the manifest's line for people, for example who made the pack, when and from what; empty without one.
      quarantine: what must not run where this pack is in force, whoever says so.
      signers: the keys that signed it, if any. That they did is proven by ``signing.verify``, not by being here.
      path: where it was read from.
    """

    name: str
    version: str
    tool: str
    digest: str
    devices: Mapping[str, Device]
    environments: Mapping[str, Environment]
    contracts: Mapping[str, int]
    contents: Contents
    gate: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""
    quarantine: Quarantine = NONE
    signers: tuple[Signer, ...] = ()
    path: str = ""

    @property
    def rows(self) -> Rows:
        """All rows, in the order of the shards.

        Raises:
          IntegrityError: of a pack that was only opened: they are not what it claims.
        """
        return _on_one_line(self.contents.prove)

    @property
    def decision_digest(self) -> str:
        """Names what it decides, without the evidence: proven, however the pack was read.

        Raises:
          IntegrityError: as ``rows``.
        """
        _on_one_line(self.contents.prove)
        return self.contents.decision_digest

    def __str__(self) -> str:
        return f"{self.name} {self.version}"

    def __repr__(self) -> str:
        return f"Pack({self}, {self.contents.count} rows, {self.digest})"

    # Packs are part of JAX's jit key: the same bytes read twice must not retrace.
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pack) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)


def read_pack(path: str | os.PathLike[str], *, signed: bool | None = None) -> Pack:
    """Reads and verifies the pack at ``path``, every row of it.

    ``signed`` says whether it must bear the signature of a trusted key; None leaves that to the environment variable
    ``ATTN_TUNE_TRUSTED_KEYS``, and refuses a wrong signature by a trusted key in any case. False checks none.

    Raises:
      StorageError: there is nothing at ``path``, or it cannot be read.
      IntegrityError: anything at all is wrong with it; the sentence says what.
      UsageError: it must be signed, and the package ``cryptography`` is not installed.
    """
    pack = open_pack(path, signed=signed)
    _on_one_line(pack.contents.prove)
    return pack


def open_pack(path: str | os.PathLike[str], *, signed: bool | None = None) -> Pack:
    """As ``read_pack``, but for the rows: each is proven when it is used, all of them when ``Pack.rows`` or
    ``Pack.decision_digest`` is asked for. For lookups, which need one or two of hundreds.

    Raises:
      As ``read_pack``.
    """
    files = read_files(path)
    pack = open_files(files, os.fspath(path))
    where = f"pack {brief(pack.path)}"
    if must_be_signed(os.environ) if signed is None else signed:
        check_trusted(files[SUMS], pack.signers, os.environ, where)
    elif signed is None:
        check_not_forged(files[SUMS], pack.signers, os.environ, where)
    return pack


def pack_from_files(files: Mapping[str, bytes], path: str = "") -> Pack:
    """Verifies the files of a pack, given as bytes by their paths inside.

    Raises:
      IntegrityError: as ``read_pack``. The sentence is one line of bounded length, whatever the pack holds.
    """
    pack = open_files(files, path)
    _on_one_line(pack.contents.prove)
    return pack


def open_files(files: Mapping[str, bytes], path: str = "") -> Pack:
    """As ``open_pack``, of files given as bytes by their paths inside.

    Raises:
      IntegrityError: as ``pack_from_files``.
    """
    return _on_one_line(lambda: _opened(files, path))


def _on_one_line[T](read: Callable[[], T]) -> T:
    try:
        return read()
    except IntegrityError as error:
        text = str(error)
        if text.isprintable() and len(text) <= _MAX_ERROR:
            raise
        text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
        raise IntegrityError(text[:_MAX_ERROR]) from None


def _opened(files: Mapping[str, bytes], path: str) -> Pack:
    path = str(Path(path)) if path else ""
    where = f"pack {brief(path)}" if path else "pack"
    for name in files:
        check_path(name)
    sums = check_sums(files, where)
    if MANIFEST not in files:
        raise IntegrityError(f"{where} has no {MANIFEST}")
    manifest = parse_json(files[MANIFEST], f"{where}: {MANIFEST}")
    if not isinstance(manifest, dict):
        raise IntegrityError(f"{where}: {MANIFEST} is not an object")
    check_format(manifest, where)
    name, version = text_of(manifest, "name", where), text_of(manifest, "version", where)
    devices = read_devices(manifest, where)
    environments = read_environments(manifest, where)
    contracts = read_contracts(manifest, where)
    quarantine = read_quarantine_list(manifest, files, sums, f"{name} {version}", where)
    contents = Contents(
        _shards(manifest, files, sums, where),
        devices=devices,
        environments=environments,
        contracts=contracts,
        decision_digest=text_of(manifest, "decision_digest", where),
        count=count_of(manifest, "rows", where),
        where=where,
    )
    return Pack(
        name=name,
        version=version,
        tool=text_of(manifest, "tool", where),
        digest=digest_text(files[SUMS].decode()),
        devices=devices,
        environments=environments,
        contracts=contracts,
        contents=contents,
        gate=read_gate(manifest, where),
        note=text_of(manifest, "note", where) if "note" in manifest else "",
        quarantine=quarantine,
        signers=read_signers(files[SIGNED], where) if SIGNED in files else (),
        path=path,
    )


def _shards(
    manifest: dict[str, Any], files: Mapping[str, bytes], sums: Mapping[str, str], where: str
) -> list[Shard]:
    found: list[Shard] = []
    listed: set[str] = set()
    for shard in list_of(manifest, "shards", where):
        if not isinstance(shard, dict):
            raise IntegrityError(f"{where}: 'shards' must hold objects")
        path = text_of(shard, "path", where)
        match = _SHARD.fullmatch(path)
        if match is None or match[3] not in DIRECTIONS or path in listed or path not in files:
            raise IntegrityError(
                f"{where}: shard {path[:200]!r} is misnamed, missing or listed twice"
            )
        listed.add(path)
        # The sums are of the very bytes that are here: they were just checked.
        if sums[path] != text_of(shard, "sha256", where):
            raise IntegrityError(f"{where}: the manifest's checksum of {path!r} does not match")
        count = count_of(shard, "rows", where)
        found.append(
            Shard(path=path, op=match[2], direction=match[3], count=count, data=files[path])
        )
    if stray := sorted(set(files) - listed - {MANIFEST, QUARANTINE, SUMS, SIGNED}):
        raise IntegrityError(f"{where} holds {stray[0]!r}, which its manifest does not name")
    return found
