"""Lengths as grids and the command line write them: one number an axis of the op, joined by ``x``.

For an op of the axes batch, query length and key length ``4x4k`` is batch 4, query and key length 4096.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attn_tune.ops.contract import Axis
from attn_tune.schema.errors import UsageError

ALL = "all"
_NUMBER = re.compile(r"([1-9][0-9]*)(k?)")


@dataclass(frozen=True, slots=True)
class Lengths:
    """The lengths of one point.

    Attributes:
      text: as they were written.
      numbers: those that the text gives, in its order.
    """

    text: str
    numbers: tuple[int, ...]

    @classmethod
    def parse(cls, text: str) -> "Lengths":
        """Read numbers joined by ``x``; ``k`` is 1024.

        Raises:
          UsageError: ``text`` has another form.
        """
        return cls(text, tuple(parse_length(part) for part in text.split("x")))

    def values(self, axes: Sequence[Axis]) -> dict[str, int]:
        """The fields of ``axes``, in the text's order; what the text leaves out is as ``Axis.same_as`` says.

        Raises:
          UsageError: too few numbers, or too many.
        """
        given = dict(zip((axis.field for axis in axes), self.numbers, strict=False))
        missing = axes[len(self.numbers) :]
        if len(self.numbers) > len(axes) or any(axis.same_as not in given for axis in missing):
            form = "x".join(axis.field.upper() for axis in axes) or "none at all"
            raise UsageError(f"lengths {self.text!r} must be {form}, as in 4x4k")
        return given | {axis.field: given[axis.same_as] for axis in missing}


def has_lengths(axes: Sequence[Axis], values: Mapping[str, Any], wanted: Iterable[str]) -> bool:
    """Whether the signature fields ``values`` have one of the lengths ``wanted``; every problem has ``all``.

    One number alone is any length that is no batch. A word that does not begin with a digit is the name of a group,
    which only a grid can tell: it matches nothing here.

    Raises:
      UsageError: a word that begins with a digit is not a length.
    """
    own = full_values(axes, values)
    # Every word is read: a malformed one is an error for every problem.
    matches = [word == ALL or (word[:1].isdigit() and _matches(axes, own, word)) for word in wanted]
    return any(matches)


def full_values(axes: Sequence[Axis], values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of the axes' fields among ``values``; one that is left out is as ``Axis.same_as`` says."""
    return {
        axis.field: values.get(axis.field, values.get(axis.same_as))
        for axis in axes
        if axis.field in values or axis.same_as in values
    }


def _matches(axes: Sequence[Axis], own: Mapping[str, Any], word: str) -> bool:
    lengths = Lengths.parse(word)
    if len(lengths.numbers) == 1:
        return lengths.numbers[0] in [own.get(axis.field) for axis in axes if axis.is_length]
    try:
        return lengths.values(axes) == own
    except UsageError:  # lengths of an op with other axes
        return False


def parse_length(text: str) -> int:
    """Read ``4096`` or ``4k``.

    Raises:
      UsageError: ``text`` is not a positive number.
    """
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise UsageError(f"length {text!r} must be a positive number such as 512 or 4k")
    return int(match[1]) * (1024 if match[2] else 1)
