"""How far many stored signatures are from one question, by their texts: a word is looked at once, however many rows
have it. What it says is confirmed by ``shapes.distance`` before a row is used."""

from collections.abc import Iterable

from attn_tune.runtime.shapes import measure, same_power
from attn_tune.schema.errors import UsageError
from attn_tune.schema.signature import Field, FieldKind, Signature, Value

type Part = tuple[float, bool]

_UNSEEN = (-1.0, False)


class Ruler:
    """Measures texts against ``asked``. For one question and one thread."""

    def __init__(self, asked: Signature, fields: Iterable[Field]):
        self._fields = {field.name: field for field in fields}
        self._values = asked.values
        head, *words = asked.text.split(" ")
        self._names = [word.partition("=")[0] for word in words]
        self._parts: dict[str, Part | None] = {head: (0.0, True)}
        self._absent: dict[str, Part | None] = {}

    def measure(self, text: str) -> tuple[float, bool] | None:
        """(sum of ``|log2(asked / tuned)|``, whether it is in the same bucket); None past a bound."""
        words = text.split(" ")
        away, is_bucket = 0.0, True
        parts = self._parts
        for word in words:
            part = parts.get(word, _UNSEEN)
            if part is _UNSEEN:
                part = parts[word] = self._part(word)
            if part is None:
                return None
            away += part[0]
            is_bucket = is_bucket and part[1]
        # A field that only the question names is at its default in the text.
        named = {word.partition("=")[0] for word in words}
        for name in self._names:
            if name not in named:
                part = self._default_part(name)
                if part is None:
                    return None
                away += part[0]
                is_bucket = is_bucket and part[1]
        return away, is_bucket

    def _part(self, word: str) -> Part | None:
        name, _, text = word.partition("=")
        field = self._fields.get(name)
        if field is None:
            return None
        try:
            return self._compare(field, field.parse(text))
        except UsageError:
            return None

    def _default_part(self, name: str) -> Part | None:
        if name not in self._absent:
            field = self._fields[name]
            self._absent[name] = self._compare(field, field.default)
        return self._absent[name]

    def _compare(self, field: Field, tuned: Value) -> Part | None:
        asked = self._values.get(field.name, field.default)
        away = measure(field.kind, asked, tuned)
        if away is None:
            return None
        return away, field.kind is not FieldKind.SCALABLE or same_power(asked, tuned)
