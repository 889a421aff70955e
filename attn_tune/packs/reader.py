"""Readers of packs. They believe nothing in a pack before it is proven.

A pack is a folder or one ``.atpack`` file: ``manifest.json``, ``shards/<family>/<op>.<direction>.json``, perhaps
``quarantine.json``, ``SHA256SUMS`` over all of these, and perhaps ``SHA256SUMS.sig`` over the sums.

``read_pack`` proves everything. ``open_pack``, for lookups, proves the list of files, the manifest and the quarantine
list. A shard is read and proven when its op and direction are asked for, a row when it may answer.
"""

import functools
import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from attn_tune.packs.archive import (
    HEAD,
    MANIFEST,
    QUARANTINE,
    SIGNED,
    SUMS,
    Files,
    brief,
    list_files,
    naming,
)
from attn_tune.packs.manifest import Manifest, read_manifest, read_sums
from attn_tune.packs.override_files import NO_OVERRIDES, OverridesFile, parse_overrides
from attn_tune.packs.rows import Row, decision_digest
from attn_tune.packs.shards import Shard
from attn_tune.packs.signing import Signer, check_signatures, must_be_signed, read_signers
from attn_tune.packs.strict_json import parse_json
from attn_tune.schema.digest import digest_text
from attn_tune.schema.errors import IntegrityError
from attn_tune.schema.words import counted


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Pack(Manifest):
    """A pack: its manifest, and its files. Packs are equal if their digests are.

    Attributes:
      sums: content of ``SHA256SUMS``, which the signatures are of.
      shards: the rows, by device family, op and direction.
      quarantine: the ``never`` entries that it carries. They hold where the pack is active.
      signers: the keys that signed it. Their signatures are proven by ``signing.check_signatures``.
      path: path that it was read from.
    """

    sums: bytes
    shards: tuple[Shard, ...]
    quarantine: OverridesFile = NO_OVERRIDES
    signers: tuple[Signer, ...] = ()
    path: str = ""

    @functools.cached_property
    def digest(self) -> str:
        """The name of all of its bytes."""
        return digest_text(self.sums.decode())

    @functools.cached_property
    def rows(self) -> tuple[Row, ...]:
        """All rows, in the order of the shards, once every claim of the pack about them is proven.

        Raises:
          IntegrityError: a row is broken or there twice, or they are not the ones that the manifest claims.
        """
        rows: list[Row] = []
        for shard in self.shards:
            with naming(f"{self.where}: {shard.path}"):
                rows += shard.rows()
        if decision_digest(rows) != self.claimed_digest or len(rows) != self.count:
            raise IntegrityError(
                f"{self.where}: its rows are not the {self.count} of the decision digest that the manifest claims"
            )
        return tuple(rows)

    @property
    def where(self) -> str:
        """The pack as errors name it."""
        return _where(self.path)

    @property
    def decision_digest(self) -> str:
        """The digest of what it decides, without the evidence.

        Raises:
          IntegrityError: as ``rows``.
        """
        _ = self.rows
        return self.claimed_digest

    def shards_of(self, op: str, direction: str) -> list[Shard]:
        """The shards of one op and direction."""
        return [shard for shard in self.shards if (shard.op, shard.direction) == (op, direction)]

    def __str__(self) -> str:
        return f"{self.name} {self.version}"

    def __repr__(self) -> str:
        return f"Pack({self}, {counted(self.count, 'row')}, {self.digest})"

    # Packs are part of JAX's jit key: the same bytes read twice must not retrace.
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pack) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)


def read_pack(path: str | os.PathLike[str], *, signed: bool | None = None) -> Pack:
    """Reads and proves the pack at ``path``, every row of it.

    ``signed`` True asks for the signature of a trusted key, False checks none. None asks for one if the environment
    variable ``ATTN_TUNE_TRUSTED_KEYS`` does, and refuses a wrong signature by a trusted key in any case.

    Raises:
      StorageError: there is nothing at ``path``, or it cannot be read.
      IntegrityError: anything at all is wrong with it; the sentence says what.
      UsageError: it must be signed, and the package ``cryptography`` is not installed.
    """
    pack = open_pack(path, signed=signed)
    _ = pack.rows
    return pack


def open_pack(path: str | os.PathLike[str], *, signed: bool | None = None) -> Pack:
    """As ``read_pack``, but without the rows. They are proven when they are used.

    Raises:
      As ``read_pack``.
    """
    root = Path(path)
    with naming(_where(str(root))):
        pack = _opened(list_files(root), str(root))
    is_required = must_be_signed(os.environ) if signed is None else signed
    if is_required or signed is None:
        check_signatures(pack.sums, pack.signers, os.environ, pack.where, is_required=is_required)
    return pack


def pack_from_files(files: Mapping[str, bytes], path: str = "", *, proven: bool = True) -> Pack:
    """The pack of these files, by their paths inside. ``proven`` False leaves the rows out, as ``open_pack`` does.

    Raises:
      IntegrityError: as ``read_pack``. The sentence is one line of bounded length, for any pack.
    """
    path = str(Path(path)) if path else ""
    with naming(_where(path)):
        pack = _opened(Files.of(files), path)
    _ = pack.rows if proven else ()
    return pack


def _where(path: str) -> str:
    return f"pack {brief(path)}" if path else "pack"


def _opened(files: Files, path: str) -> Pack:
    names = [name for name in HEAD if name in files.names]
    head = dict(zip(names, files.load(names), strict=True))
    if SUMS not in head:
        raise IntegrityError(f"it has no {SUMS}")
    sums = read_sums(head[SUMS], files.names)
    for name in head.keys() & sums.keys():
        if hashlib.sha256(head[name]).hexdigest() != sums[name]:
            raise IntegrityError(f"the checksum of {name!r} does not match; it was changed")
    manifest = read_manifest(head[MANIFEST], sums)
    return Pack(
        **vars(manifest),
        sums=head[SUMS],
        shards=tuple(Shard(entry, manifest, files) for entry in manifest.entries),
        quarantine=_quarantine(manifest, head.get(QUARANTINE, b"")),
        signers=read_signers(head[SIGNED]) if SIGNED in head else (),
        path=path,
    )


def _quarantine(manifest: Manifest, data: bytes) -> OverridesFile:
    if manifest.listed is None:
        return NO_OVERRIDES
    origin = f"pack {manifest.name} {manifest.version}"
    found = parse_overrides(parse_json(data, QUARANTINE), origin, QUARANTINE)
    if found.only or not all(entry.never for entry in found.entries):
        raise IntegrityError(f"{QUARANTINE} may hold 'never' entries alone")
    if not found.entries or len(found.entries) != manifest.listed:
        raise IntegrityError(f"{QUARANTINE} does not hold the entries that the manifest says")
    return found
