"""The rows of a shard in the writer's spelling, left as bytes: found by their signature, proven one at a time.

What is proven of the whole is that it is lines, as many as the manifest says, each with one signature of the op in
it. A line that turns out not to be a row when it is used is refused then.
"""

import re
from collections.abc import Iterator

from attn_tune.runtime.rows import Row, row_from_json
from attn_tune.runtime.strict_json import parse_json
from attn_tune.runtime.tables import plain_row
from attn_tune.schema.errors import IntegrityError

_SIGNATURE = re.compile(rb',"signature":"([^"]*)"')


class RawTable:
    """One shard. A place is where a row's line starts."""

    def __init__(self, data: bytes, *, op: str, direction: str):
        self.op, self.direction = op, direction
        self._data = data

    @property
    def signatures(self) -> list[str]:
        """What the rows say they are of, unproven."""
        found = b"\n".join(_SIGNATURE.findall(self._data))
        return found.decode("ascii").split("\n") if found else []

    def holds_device(self, digest: str) -> bool:
        """Whether a row may be of this device."""
        return digest.encode() in self._data

    def find(self, signature: str) -> Iterator[int]:
        """The places of the rows of exactly this signature."""
        wanted = f',"signature":"{signature}"'.encode()
        at = self._data.find(wanted)
        while at >= 0:
            yield self._data.rfind(b"\n", 0, at) + 1
            at = self._data.find(wanted, at + len(wanted))

    def row(self, place: int) -> Row:
        """The row at ``place``.

        Raises:
          IntegrityError: the line there is none, or is not followed by what must follow a row.
        """
        end = self._data.index(b"\n", place)
        line = self._data[place:end].decode("ascii")
        # A comma if, and only if, another row follows.
        comma = line.endswith(",")
        if comma != self._data.startswith(b"{", end + 1):
            raise IntegrityError("a comma is missing or too many")
        line = line.removesuffix(",")
        if row := plain_row(line, op=self.op, direction=self.direction):
            return row
        return row_from_json(parse_json(line.encode(), "it"), op=self.op, direction=self.direction)


def raw_table(data: bytes, *, op: str, direction: str, count: int) -> RawTable | None:
    """The table of a shard that looks as the writer spells it; None if it does not."""
    if (
        data.startswith(b"[\n{")
        and data.endswith(b"}\n]\n")
        # Then a text ends at the next quote, and one spelling is one text.
        and data.isascii()
        and b"\\" not in data
        # A line each, and in each line the one signature that a lookup would find.
        and data.count(b"\n") == count + 2
        and data.count(f',"signature":"{op}/v'.encode()) == count
    ):
        return RawTable(data, op=op, direction=direction)
    return None
