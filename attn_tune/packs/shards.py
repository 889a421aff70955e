"""Shards: the files of a pack that hold its rows, one file for each device family, op and direction.

A shard is a JSON array with one row on each line, in canonical JSON. So a lookup finds the lines of a signature
without parsing the others, and parses and checks only those that may answer.
"""

import functools
import hashlib
import re

from attn_tune.packs.archive import Files
from attn_tune.packs.manifest import Manifest, ShardEntry
from attn_tune.packs.rows import Row, parse_row
from attn_tune.packs.strict_json import parse_json
from attn_tune.schema.digest import canonical_json
from attn_tune.schema.errors import IntegrityError

_HEAD, _BETWEEN, _TAIL = b"[\n", b",\n", b"\n]\n"
# No other field or knob has this name, and quotes within texts are escaped.
_SIGNATURE = re.compile(rb'"signature":"([^"]*)"')
_ANY_SIGNATURE = re.compile(rb'"signature":("[^"]*"|[^,}]*)')


class Shard:
    """One shard of an open pack. Its file is read, and held against its sum, when a row is first asked for.

    Attributes:
      path: path of the file inside the pack.
      op: name of the op.
      direction: name of the direction.
    """

    def __init__(self, entry: ShardEntry, manifest: Manifest, files: Files):
        self.path, self.op, self.direction = entry.path, entry.op, entry.direction
        self._entry, self._manifest, self._files = entry, manifest, files

    @property
    def is_readable(self) -> bool:
        """Whether the file is there and what the manifest says. Lookups ignore it otherwise."""
        try:
            return bool(self._data)
        except (IntegrityError, OSError):
            return False

    @property
    def signatures(self) -> list[str]:
        """The signatures that the lines name."""
        return b"\n".join(_SIGNATURE.findall(self._data)).decode().split("\n")

    def holds_device(self, digest: str) -> bool:
        """Whether a row may be of this device.

        Raises:
          IntegrityError: the file is not what the manifest says.
          OSError: the file cannot be read.
        """
        return digest.encode() in self._data

    def find(self, signature: str) -> list[Row]:
        """The rows of exactly this signature, checked. They stand or fall together.

        Raises:
          IntegrityError: one of them is broken, or two answer the same.
        """
        rows: list[Row] = []
        data, wanted = self._data, f'"signature":"{signature}"'.encode()
        at = data.find(wanted)
        while at >= 0:
            end = data.find(b"\n", at)
            line = data[data.rfind(b"\n", 0, at) + 1 : end]
            if line.endswith(b",") != data.startswith(b"{", end + 1):
                raise IntegrityError("a comma is missing or too many")
            row = self._row(line.removesuffix(b","))
            rows += [row] if row.signature == signature else []
            at = data.find(wanted, at + len(wanted))
        _check_unique(rows)
        return rows

    def rows(self) -> list[Row]:
        """All rows, checked.

        Raises:
          IntegrityError: a row is broken, or two answer the same; the sentence names the row.
          OSError: the file cannot be read.
        """
        rows: list[Row] = []
        for number, line in enumerate(self._data[len(_HEAD) : -len(_TAIL)].split(_BETWEEN), 1):
            try:
                rows.append(self._row(line))
            except IntegrityError as error:
                raise IntegrityError(f"row {number}: {error}") from None
        _check_unique(rows)
        return rows

    @functools.cached_property
    def _data(self) -> bytes:
        (data,), count = self._files.load([self.path]), self._entry.count
        if hashlib.sha256(data).hexdigest() != self._entry.sha256:
            raise IntegrityError("the checksum does not match; the file was changed")
        is_array = data.isascii() and data.startswith(_HEAD) and data.endswith(_TAIL)
        if not is_array or data.count(b"\n") != count + 2:
            raise IntegrityError(f"it is not an array of {count} rows in ASCII, one on each line")
        # Then a lookup can tell the rows apart.
        named = f'"signature":"{self.op}/v'.encode()
        if data.count(named) != count:
            lines = enumerate(data.split(b"\n")[1:-2], 1)
            number, line = next((n, one) for n, one in lines if one.count(named) != 1)
            got = " and ".join(one.decode() for one in _ANY_SIGNATURE.findall(line)) or "none"
            raise IntegrityError(f"row {number}: it must name one signature of {self.op}, got {got!r:.100}")
        return data

    def _row(self, line: bytes) -> Row:
        manifest = self._manifest
        data = parse_json(line, "it")
        row = parse_row(data, op=self.op, direction=self.direction)
        # A lookup would miss another spelling.
        if canonical_json(data).encode() != line:
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
            raise IntegrityError(f"the row {row.signature!r} of kernel {row.kernel!r} appears twice for one device")
        seen.update(keys)


def shard_data(rows: list[Row]) -> bytes:
    """The bytes of a shard of ``rows``, which all are of one family, op and direction."""
    ordered = sorted(rows, key=lambda row: (row.signature, row.device, row.rank))
    return _HEAD + _BETWEEN.join(row.line.encode() for row in ordered) + _TAIL
