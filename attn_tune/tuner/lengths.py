"""Lengths as they are written in grids and on the command line: ``4x4k`` is batch 4, query and key length 4096."""

import re
from dataclasses import dataclass

from attn_tune.schema.errors import UsageError

_NUMBER = re.compile(r"([1-9][0-9]*)(k?)")


@dataclass(frozen=True, slots=True)
class Lengths:
    """Batch, query length and key/value length of one point, with the text that said so."""

    text: str
    batch: int
    q_len: int
    kv_len: int

    @classmethod
    def parse(cls, text: str) -> "Lengths":
        """Reads ``BxT`` (self-attention) or ``BxTxS``; ``k`` is 1024.

        Raises:
          UsageError: ``text`` has another form.
        """
        parts = text.split("x")
        if len(parts) not in (2, 3):
            raise UsageError(
                f"lengths {text!r} must be BATCHxLENGTH or BATCHxQUERYxKEYS, as in 4x4k"
            )
        batch, q_len, *rest = (parse_length(part) for part in parts)
        return cls(text, batch, q_len, rest[0] if rest else q_len)

    def matches(self, wanted: str) -> bool:
        """Whether ``wanted`` is this text, or a length that the queries or the keys have."""
        if "x" in wanted:
            other = Lengths.parse(wanted)
            return (self.batch, self.q_len, self.kv_len) == (other.batch, other.q_len, other.kv_len)
        return parse_length(wanted) in (self.q_len, self.kv_len)


def parse_length(text: str) -> int:
    """Reads ``4096`` or ``4k``.

    Raises:
      UsageError: ``text`` is not a positive number.
    """
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise UsageError(f"length {text!r} must be a positive number such as 512 or 4k")
    return int(match[1]) * (1024 if match[2] else 1)
