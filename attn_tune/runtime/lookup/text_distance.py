"""Distances of many stored signatures from one question, by their texts.

A word is looked at once, however many rows have it. What it says is confirmed by ``signature_distance`` before a row
is used.
"""

from collections.abc import Iterable
from typing import NamedTuple

from attn_tune.runtime.lookup.signature_distance import measure, same_power
from attn_tune.schema.errors import UsageError
from attn_tune.schema.signature import Field, FieldKind, Signature, Value


class Near(NamedTuple):
    """A stored signature within the bounds of a question, by its text alone.

    ``distance`` is the sum of ``|log2(asked / tuned)|``; ``is_bucket`` says whether it is in the same bucket.
    """

    distance: float
    text: str
    is_bucket: bool


# Of one word: its distance, whether it is in the same bucket, whether the question has a word of that name.
type _Part = tuple[float, bool, bool]


def near_texts(texts: Iterable[str], asked: Signature, fields: Iterable[Field]) -> list[Near]:
    """Those of ``texts`` that are within the bounds of ``asked``, nearest first."""
    distances = _Distances(asked, fields)
    known, known_get = distances.parts, distances.parts.get
    named = len(asked.items)
    found: list[Near] = []
    for text in texts:
        away, is_bucket, names = 0.0, True, 0
        for word in text.split(" "):
            part = known_get(word, _UNSEEN)
            if part is _UNSEEN:
                part = known[word] = distances.part(word)
            if part is None:
                break
            away += part[0]
            is_bucket &= part[1]
            names += part[2]
        else:
            near = Near(away, text, is_bucket)
            if names == named or (near := distances.with_defaults(near)):
                found.append(near)
    found.sort()
    return found


_UNSEEN: _Part = (-1.0, False, False)


class _Distances:
    """Distances that words add for one question; None is past a bound."""

    def __init__(self, asked: Signature, fields: Iterable[Field]):
        self._fields = {field.name: field for field in fields}
        self._values = asked.values
        self.parts: dict[str, _Part | None] = {asked.text.split(" ")[0]: (0.0, True, False)}

    def part(self, word: str) -> _Part | None:
        name, _, text = word.partition("=")
        field = self._fields.get(name)
        if field is None:
            return None
        try:
            return self._compare(field, field.parse(text))
        except UsageError:
            return None

    def with_defaults(self, near: Near) -> Near | None:
        """``near`` with the fields that only the question names: they are at their defaults in the text."""
        away, is_bucket = near.distance, near.is_bucket
        names = {word.partition("=")[0] for word in near.text.split(" ")}
        for name in self._values.keys() - names:
            part = self._compare(self._fields[name], self._fields[name].default)
            if part is None:
                return None
            away += part[0]
            is_bucket &= part[1]
        return Near(away, near.text, is_bucket)

    def _compare(self, field: Field, tuned: Value) -> _Part | None:
        asked = self._values.get(field.name, field.default)
        away = measure(field.kind, asked, tuned)
        if away is None:
            return None
        in_bucket = field.kind is not FieldKind.SCALABLE or same_power(asked, tuned)
        return away, in_bucket, field.name in self._values
