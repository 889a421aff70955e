"""Lengths as they are written in grids and on the command line: ``4x4k`` is batch 4, query and key length 4096."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from attn_tune.schema.errors import UsageError

ALL = "all"
FIELDS = ("b", "t", "s")
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


def has_lengths(values: Mapping[str, Any], wanted: Iterable[str]) -> bool:
    """Whether the signature fields ``values`` have one of the lengths ``wanted``; every problem has ``all``.

    A word that does not begin with a digit is the name of a group, which only a grid can tell: it matches nothing here.

    Raises:
      UsageError: a word that begins with a digit is not a length.
    """
    sizes = [values.get(name) for name in FIELDS]
    own = Lengths("", *(size if isinstance(size, int) else 0 for size in sizes))
    # Every word is read: a malformed one is an error, whatever the problem is.
    matches = [word == ALL or (word[:1].isdigit() and own.matches(word)) for word in wanted]
    return any(matches)


def parse_length(text: str) -> int:
    """Reads ``4096`` or ``4k``.

    Raises:
      UsageError: ``text`` is not a positive number.
    """
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise UsageError(f"length {text!r} must be a positive number such as 512 or 4k")
    return int(match[1]) * (1024 if match[2] else 1)
