"""The signature: the canonical text of one problem, and the key of every stored fact.

Text form, one line, declared order, defaults left out::

    some_op/v1 b=1 t=4096 n=32 h=128 dtype=bfloat16 workload=uni

A field says how far a stored row may be from the question: a *categorical* value must be equal, a *resource* must
not exceed what was tuned, a *scalable* one may be bucketed or borrowed from a near neighbour. A field added later
carries a default and is left out at that default, so the digests of old rows never change.
"""

import enum
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from attn_tune.schema.digest import digest_text
from attn_tune.schema.errors import UsageError, short, unknown_name

type Value = int | str | None

# Arrays are indexed with int32 (JAX without x64), so no axis is longer.
MAX_INT = 2**31 - 1

_VERSION = re.compile(r"[0-9]{1,9}")
_TEXT = re.compile(r"[A-Za-z0-9_.,+-]+")


class FieldKind(enum.StrEnum):
    """The part that a field takes in matching."""

    CATEGORICAL = "categorical"
    """A stored row answers for an equal value alone."""
    RESOURCE = "resource"
    """A stored row answers for values up to its own."""
    SCALABLE = "scalable"
    """A stored row answers for values near its own, such as a length."""


REQUIRED = "<required>"


@dataclass(frozen=True, kw_only=True, slots=True)
class Field:
    """One field of an op's signature.

    A field whose ``default`` is ``REQUIRED`` always appears in the text. ``None`` means "not there" (no window,
    no mask); it equals only itself, in every kind.

    ``order_with`` names another integer field. The order of the two (less, equal, greater) is then part of the
    problem's meaning: a stored row answers only a question of the same order, even if both values are near.

    Attributes:
      name: its word in the text.
      kind: the part that it takes in matching.
      is_int: its values are integers; otherwise plain words.
      doc: a phrase for listings.
    """

    name: str
    kind: FieldKind
    is_int: bool
    default: Value = REQUIRED
    doc: str = ""
    order_with: str = ""

    def parse(self, text: str) -> Value:
        """Reads a value from its text.

        Raises:
          UsageError: the field is an integer and ``text`` is none.
        """
        if not self.is_int:
            return text
        try:
            return int(text)
        except ValueError:
            raise UsageError(f"signature field {self.name}={short(text, 100)!r} is not an integer") from None


@dataclass(frozen=True, slots=True)
class Signature:
    """One problem: op, contract version and the values of the op's fields. Hashable; equal text, equal signature.

    Attributes:
      op: the name of the op.
      version: the version of the op's contract.
      items: names and values of the fields that are not at their default, in declared order.
    """

    op: str
    version: int
    items: tuple[tuple[str, Value], ...]

    @classmethod
    def build(cls, op: str, version: int, fields: Iterable[Field], values: Mapping[str, Value]) -> "Signature":
        """Checks ``values`` against ``fields`` and drops what is at its default.

        Raises:
          UsageError: a required field is missing, a field is unknown, or a value has the wrong type or is beyond
            ``MAX_INT``.
        """
        fields = tuple(fields)
        unknown = set(values) - {f.name for f in fields}
        if unknown:
            raise unknown_name(f"signature field of {op}", min(unknown), [f.name for f in fields])
        items: list[tuple[str, Value]] = []
        for field in fields:
            value = values.get(field.name, field.default)
            if value is REQUIRED or (isinstance(value, str) and value == REQUIRED):
                raise UsageError(f"signature of {op} needs the field {field.name!r}")
            # True is 1, and would be left out where that is the default.
            if value == field.default and not isinstance(value, bool):
                continue
            if field.is_int and (not isinstance(value, int) or isinstance(value, bool)):
                raise UsageError(f"signature field {field.name}={value!r} of {op} must be an integer")
            if isinstance(value, int) and abs(value) > MAX_INT:
                # Python refuses to write numbers of more than 4300 digits.
                shown = short(str(value), 40) if value.bit_length() < 14_000 else "HUGE"
                raise UsageError(
                    f"signature field {field.name}={shown} of {op} is out of range; the largest is {MAX_INT}"
                )
            if not field.is_int and (not isinstance(value, str) or not _TEXT.fullmatch(value)):
                raise UsageError(f"signature field {field.name}={value!r} of {op} must be a plain word")
            items.append((field.name, value))
        return cls(op, version, tuple(items))

    @classmethod
    def parse(cls, text: str, fields: Iterable[Field]) -> "Signature":
        """The inverse of ``text``.

        Raises:
          UsageError: the text is malformed, or does not fit ``fields``.
        """
        head, *rest = text.split() or [""]
        op, sep, version = head.partition("/v")
        if not sep or not _VERSION.fullmatch(version):
            hint = f"; a grid point's is attn_tune.grid_point({text!r}).signature"
            raise UsageError(f"signature {text!r} must start with OP/vN{'' if '=' in text else hint}")
        by_name = {f.name: f for f in fields}
        values: dict[str, Value] = {}
        for item in rest:
            name, sep, value = item.partition("=")
            if not sep:
                raise UsageError(f"signature {text!r}: {item!r} must be FIELD=VALUE")
            if name not in by_name:
                raise UsageError(f"signature {text!r}: {unknown_name('field', name, by_name)}")
            if name in values:
                raise UsageError(f"signature {text!r}: field {name!r} appears twice")
            values[name] = by_name[name].parse(value)
        signature = cls.build(op, int(version), by_name.values(), values)
        if signature.text != " ".join(text.split()):
            raise UsageError(f"signature {text!r} is not canonical; write {signature.text!r}")
        return signature

    @property
    def text(self) -> str:
        """The canonical text."""
        parts = [f"{self.op}/v{self.version}", *(f"{k}={v}" for k, v in self.items)]
        return " ".join(parts)

    @property
    def digest(self) -> str:
        """The digest of ``text``."""
        return digest_text(self.text)

    @property
    def values(self) -> dict[str, Value]:
        """The stored values (fields at their defaults are absent)."""
        return dict(self.items)

    def __str__(self) -> str:
        return self.text
