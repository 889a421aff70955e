"""The rows of one pack for one op and direction, arranged for lookup."""

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
    """One op and direction of one pack. Immutable once built; each device's rows are in their own group.

    ``unreadable`` holds the rows whose signature this version cannot read (another contract, a field of a newer
    version), with the reason: they never match.
    """

    def __init__(self, pack: Pack, op: str, direction: str, fields: tuple[Field, ...]):
        self.pack = pack
        self.unreadable: list[tuple[Row, str]] = []
        self.fields = fields
        self._exact: dict[tuple[str, str], list[Placed]] = {}
        self._near: dict[tuple[str, tuple[Value, ...]], list[Placed]] = {}
        self._devices: dict[str, Device] = {}
        for row in pack.rows:
            if row.op == op and row.direction == direction:
                self._place(row)

    def _place(self, row: Row) -> None:
        try:
            signature = Signature.parse(row.signature, self.fields)
        except UsageError as error:
            self.unreadable.append((row, str(error)))
            return
        placed = Placed(row, signature, shape_of(signature, self.fields))
        self._exact.setdefault((row.device, row.signature), []).append(placed)
        near = self._near.setdefault((row.device, placed.shape.categorical), [])
        near.append(placed)
        self._devices[row.device] = self.pack.devices[row.device]

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

    def at(self, digest: str, signature_text: str) -> list[Placed]:
        """Rows of exactly this signature."""
        return self._exact.get((digest, signature_text), [])

    def comparable(self, digest: str, shape: Shape) -> list[Placed]:
        """Rows whose categorical fields are equal."""
        return self._near.get((digest, shape.categorical), [])

    def everything(self, digest: str) -> Iterator[Placed]:
        """All rows of one device."""
        for (owner, _), rows in self._near.items():
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
