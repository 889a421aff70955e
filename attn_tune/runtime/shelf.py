"""The rows of one pack for one op and direction, arranged for lookup."""

import functools
from collections.abc import Iterator
from dataclasses import dataclass

from attn_tune.runtime.answer import DeviceLevel
from attn_tune.runtime.packs import Pack
from attn_tune.runtime.rows import Row
from attn_tune.runtime.shapes import Shape, shape_of
from attn_tune.schema.device import Device
from attn_tune.schema.errors import UsageError
from attn_tune.schema.signature import Field, Signature, Value


@dataclass(frozen=True, slots=True)
class Placed:
    """A row with its parsed signature."""

    row: Row
    signature: Signature
    shape: Shape


class Shelf:
    """One op and direction of one pack; each device's rows are in their own group.

    Exact questions are answered by text. Signatures are parsed only when some question needs more than that.
    """

    def __init__(self, pack: Pack, op: str, direction: str, fields: tuple[Field, ...]):
        self.pack = pack
        self.fields = fields
        self._tables = [t for t in pack.rows.tables if (t.op, t.direction) == (op, direction)]
        held = {device for table in self._tables for device in table.devices}
        self._devices = {device: pack.devices[device] for device in held}

    @functools.cached_property
    def _parsed(self) -> tuple[dict[tuple[str, tuple[Value, ...]], list[Placed]], list[str]]:
        """Rows by device and categorical fields; and why the others cannot be read.

        A row that this version cannot read (another contract, a field of a newer version) never matches.
        """
        near: dict[tuple[str, tuple[Value, ...]], list[Placed]] = {}
        unreadable: list[str] = []
        for row in (t.row(place) for t in self._tables for place in range(len(t))):
            try:
                signature = Signature.parse(row.signature, self.fields)
            except UsageError as error:
                unreadable.append(str(error))
                continue
            placed = Placed(row, signature, shape_of(signature, self.fields))
            near.setdefault((row.device, placed.shape.categorical), []).append(placed)
        return near, unreadable

    @property
    def unreadable(self) -> list[str]:
        """Why some rows cannot be read, one reason a row."""
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
            # The device that differs in the fewest performance parameters goes first.
            digests.sort(key=lambda d: (len(_differing_fields(device, self._devices[d])), d))
            if digests:
                yield level, digests

    def device_note(self, device: Device, digest: str) -> str:
        """In what a stored device differs: ``"power_watts 700 vs 500"``; ``""`` when in nothing."""
        stored = self._devices[digest]
        mine, theirs = device.identity, stored.identity
        names = _differing_fields(device, stored)
        return ", ".join(f"{name} {mine[name]} vs {theirs[name]}" for name in names)

    def at(self, digest: str, signature_text: str) -> list[Row]:
        """Rows of exactly this signature."""
        return [
            table.row(place)
            for table in self._tables
            for place in table.find(signature_text)
            if table.devices[place] == digest
        ]

    def comparable(self, digest: str, shape: Shape) -> list[Placed]:
        """Rows whose categorical fields are equal."""
        return self._parsed[0].get((digest, shape.categorical), [])

    def everything(self, digest: str) -> Iterator[Placed]:
        """All rows of one device."""
        for (owner, _), rows in self._parsed[0].items():
            if owner == digest:
                yield from rows


def match_level(device: Device, stored: Device) -> DeviceLevel | None:
    """How much of ``device`` a stored one shares; None when not even the architecture."""
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
