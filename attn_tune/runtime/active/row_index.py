"""Rows of one pack for one op and direction, arranged for lookup. A row is proven before it may answer."""

import functools
from collections.abc import Iterator

from attn_tune.packs.archive import naming
from attn_tune.packs.reader import Pack
from attn_tune.packs.rows import Row
from attn_tune.packs.shards import Shard
from attn_tune.runtime.lookup.answer import DeviceLevel
from attn_tune.runtime.lookup.text_distance import Near, near_texts
from attn_tune.schema.device import Device
from attn_tune.schema.errors import IntegrityError, StorageError, UsageError
from attn_tune.schema.logs import log
from attn_tune.schema.signature import Field, Signature


class RowIndex:
    """Rows of one op and direction of one pack; each device's rows are in their own group.

    Attributes:
      pack: the pack.
      fields: the fields of the op's signature.
      error: why the rows cannot be used at all, ``""`` if they can: a file of the pack was changed.
      broken: why the rows of some signatures cannot be used.
    """

    def __init__(self, pack: Pack, op: str, direction: str, fields: tuple[Field, ...]):
        self.pack = pack
        self.fields = fields
        self.broken: list[str] = []
        self.error = ""
        self._shards = pack.shards_of(op, direction)
        self._lost: list[Shard] = []
        self._devices: dict[str, Device] = {}
        try:
            for shard in self._shards:
                with naming(f"{pack.where}: {shard.path}"):
                    self._devices |= {k: d for k, d in pack.devices.items() if shard.holds_device(k)}
        except (IntegrityError, StorageError) as error:
            self.error = str(error)
            self._lost, self._shards, self._devices = self._shards, [], {}
            log.warning("ignored for %s.%s: %s", op, direction, error)
        # The last question's rows: several levels and devices ask for the same ones.
        self._last: tuple[str, list[Row]] = ("", [])
        self._last_near: tuple[str, list[Near]] = ("", [])

    @property
    def is_whole_again(self) -> bool:
        """Whether files that could not be read can be now, and are what the manifest says."""
        return bool(self._lost) and all(shard.is_readable for shard in self._lost)

    @functools.cached_property
    def _texts(self) -> list[str]:
        """The signatures that rows claim, each once."""
        return list(dict.fromkeys(text for shard in self._shards for text in shard.signatures))

    @functools.cached_property
    def _parsed(self) -> tuple[dict[str, list[tuple[Row, Signature]]], list[str]]:
        """Sound rows by device, and why the others cannot be read."""
        found: dict[str, list[tuple[Row, Signature]]] = {}
        unreadable: list[str] = []
        for text in self._texts:
            rows = self._rows(text)
            try:
                signature = Signature.parse(text, self.fields)
            except UsageError as error:
                unreadable += [str(error)] * len(rows)
                continue
            for row in rows:
                found.setdefault(row.device, []).append((row, signature))
        return found, unreadable + self.broken

    @property
    def unreadable(self) -> list[str]:
        """Reasons why rows cannot be read, one a row: another contract, a field of a newer version, a broken row.
        They never match."""
        return self._parsed[1]

    def groups(self, device: Device) -> Iterator[tuple[DeviceLevel, list[str]]]:
        """The digests of the stored devices that match ``device``, level by level, in a fixed order.

        A device belongs to its best level only. A slice of a device never stands for the whole one at the variant
        level, nor the other way round.
        """
        levels: dict[DeviceLevel, list[str]] = {level: [] for level in DeviceLevel}
        for digest, stored in sorted(self._devices.items()):
            if (level := match_level(device, stored)) is not None:
                levels[level].append(digest)
        for level, digests in levels.items():
            if len(digests) > 1:
                # The device that differs in the fewest performance parameters goes first.
                digests.sort(key=lambda d: (len(_differing_fields(device, self._devices[d])), d))
            if digests:
                yield level, digests

    def device_note(self, device: Device, digest: str) -> str:
        """In what a stored device differs: ``"power_watts 700 vs 500"``; ``""`` when in nothing."""
        stored = self._devices[digest]
        if device == stored:
            return ""
        mine, theirs = device.identity, stored.identity
        names = _differing_fields(device, stored)
        return ", ".join(f"{name} {mine[name]} vs {theirs[name]}" for name in names)

    def at(self, digest: str, signature_text: str) -> list[Row]:
        """Rows of exactly this signature, proven."""
        return [row for row in self._rows(signature_text) if row.device == digest]

    def near(self, asked: Signature) -> list[Near]:
        """The other stored signatures within the bounds of ``asked``, nearest first."""
        text = asked.text
        known, found = self._last_near
        if known != text:
            near = near_texts(self._texts, asked, self.fields)
            found = [one for one in near if one.text != text]
            self._last_near = (text, found)
        return found

    def everything(self, digest: str) -> list[tuple[Row, Signature]]:
        """All rows of one device."""
        return self._parsed[0].get(digest, [])

    def _rows(self, signature: str) -> list[Row]:
        """The rows of this signature, on all devices. They stand or fall together: where one is broken, or two answer
        the same, none may be used."""
        known, rows = self._last
        if known == signature:
            return rows
        rows: list[Row] = []
        try:
            for shard in self._shards:
                rows += shard.find(signature)
        except IntegrityError as error:
            rows = []
            self._refuse(signature, error)
        self._last = (signature, rows)
        return rows

    def _refuse(self, signature: str, error: IntegrityError) -> None:
        reason = f"the rows of {signature!r:.300} are broken: {error!s:.500}"
        if reason in self.broken:
            return
        self.broken.append(reason)
        if len(self.broken) == 1:
            log.warning(
                "pack %s: %s; they are not used, and 'attn-tune pack verify' says what else is wrong",
                self.pack.path or self.pack,
                reason,
            )


def match_level(device: Device, stored: Device) -> DeviceLevel | None:
    """The part of ``device`` that a stored one shares; None when not even the architecture."""
    if device == stored:
        return DeviceLevel.EXACT
    if device.platform != stored.platform:
        return None
    if (device.variant, device.partition) == (stored.variant, stored.partition):
        return DeviceLevel.VARIANT
    return DeviceLevel.FAMILY if device.family == stored.family else None


def _differing_fields(device: Device, stored: Device) -> list[str]:
    mine, theirs = device.identity, stored.identity
    return [name for name in mine if mine[name] != theirs[name]]
