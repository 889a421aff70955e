"""Shards: the files of a pack that hold its rows, one file for each device family, op and direction.

A shard is a JSON array with one row on each line, in canonical JSON. So a lookup finds the lines of a signature
without parsing the others, and parses and checks only those that may answer.
"""

import functools
import hashlib

from attn_tune.packs.archive import Files
from attn_tune.packs.manifest import Manifest, ShardEntry
from attn_tune.packs.rows import Row, parse_row
from attn_tune.packs.strict_json import parse_json
from attn_tune.schema.digest import canonical_json
from attn_tune.schema.errors import IntegrityError

_HEAD, _BETWEEN, _TAIL = b"[\n", ",\n", b"\n]\n"
_SIGNATURE = ',"signature":"'


class Shard:
    """One shard of an open pack. Its file is read, and held against its sum, when a row is first asked for."""

    def __init__(self, entry: ShardEntry, manifest: Manifest, files: Files):
        self.op, self.direction = entry.op, entry.direction
        self._entry, self._manifest, self._files = entry, manifest, files

    @property
    def signatures(self) -> list[str]:
        """The signatures of the rows, each once, as the lines say."""
        return list(self._places)

    def holds_device(self, digest: str) -> bool:
        """Whether a row may be of this device."""
        return any(digest in line for line in self._lines)

    def find(self, signature: str) -> list[Row]:
        """The rows of exactly this signature, checked. They stand or fall together.

        Raises:
          IntegrityError: one of them is broken, or two answer the same.
        """
        rows = [self._row(place) for place in self._places.get(signature, ())]
        _check_unique(rows)
        return rows

    def rows(self) -> list[Row]:
        """All rows, checked.

        Raises:
          IntegrityError: a row is broken, or two answer the same; the sentence names the file and the row.
        """
        rows = []
        for place in range(len(self._lines)):
            try:
                rows.append(self._row(place))
            except IntegrityError as error:
                raise IntegrityError(f"{self._where} row {place + 1}: {error}") from None
        try:
            _check_unique(rows)
        except IntegrityError as error:
            raise IntegrityError(f"{self._where}: {error}") from None
        return rows

    @property
    def _where(self) -> str:
        return f"{self._manifest.where}: {self._entry.path}"

    @functools.cached_property
    def _lines(self) -> list[str]:
        (data,) = self._files.read(self._entry.path)
        if hashlib.sha256(data).hexdigest() != self._entry.sha256:
            raise IntegrityError(
                f"{self._where}: the checksum does not match; the file was changed"
            )
        is_array = data.isascii() and data.startswith(_HEAD) and data.endswith(_TAIL)
        lines = data[len(_HEAD) : -len(_TAIL)].decode().split(_BETWEEN) if is_array else []
        if len(lines) != self._entry.count:
            raise IntegrityError(
                f"{self._where} is not an array of {self._entry.count} rows in ASCII, one on each line"
            )
        return lines

    @functools.cached_property
    def _places(self) -> dict[str, list[int]]:
        """The numbers of the lines of each signature."""
        start, found = f"{self.op}/v", {}
        for place, line in enumerate(self._lines):
            signature = _signature_of(line)
            if not signature.startswith(start):
                raise IntegrityError(f"{self._where} row {place + 1}: no signature of {self.op}")
            found.setdefault(signature, []).append(place)
        return found

    def _row(self, place: int) -> Row:
        line, manifest = self._lines[place], self._manifest
        data = parse_json(line, "it")
        row = parse_row(data, op=self.op, direction=self.direction)
        # A lookup would miss another spelling.
        if row.signature != _signature_of(line) or canonical_json(data) != line:
            raise IntegrityError("it is not in canonical JSON")
        device = manifest.devices.get(row.device)
        if device is None:
            raise IntegrityError("it is of a device that the manifest does not describe")
        if device.family != self._entry.family:
            raise IntegrityError(f"it is of a device of the family {device.family!r:.100}")
        if row.env not in manifest.environments:
            raise IntegrityError("it is of an environment that the manifest does not describe")
        if f"{row.op}/{row.kernel}" not in manifest.contracts:
            raise IntegrityError("it is of a kernel that the manifest does not list")
        return row


def _check_unique(rows: list[Row]) -> None:
    """Refuses two rows of one kernel or of one rank, for one device and signature.

    Raises:
      IntegrityError: there are two.
    """
    seen: set[tuple[str | int, ...]] = set()
    for row in rows:
        keys = (row.key, (*row.key[:3], row.rank))
        if not seen.isdisjoint(keys):
            raise IntegrityError(
                f"the row {row.signature!r} of kernel {row.kernel!r} appears twice for one device"
            )
        seen.update(keys)


def shard_data(rows: list[Row]) -> bytes:
    """The bytes of a shard of ``rows``, which all are of one family, op and direction."""
    ordered = sorted(rows, key=lambda row: (row.signature, row.device, row.rank))
    return _HEAD + _BETWEEN.join(row.line for row in ordered).encode() + _TAIL


def _signature_of(line: str) -> str:
    """The signature that a canonical line names. A config, which may have such a knob, stands before it."""
    return line.rpartition(_SIGNATURE)[2].partition('"')[0]
