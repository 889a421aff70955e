"""Numbers, configs and counts as people read them: one spelling for tables, explanations and errors."""

from collections.abc import Iterator, Mapping
from typing import Any

from attn_tune.schema.config import is_mapping


def duration(nanoseconds: float) -> str:
    """Three digits and a unit: ``812 ns``, ``48.3 us``, ``1.25 ms``."""
    value, unit = float(nanoseconds), "ns"
    for larger in ("us", "ms", "s"):
        if value < 999.5:
            break
        value, unit = value / 1000, larger
    if value >= 99.95 or unit == "ns":
        return f"{value:.0f} {unit}"
    return f"{value:.1f} {unit}" if value >= 9.995 else f"{value:.2f} {unit}"


def config_words(config: Mapping[str, Any]) -> str:
    """A config on one line, by name, as commands take it: ``rows=64 second.columns=32``; ``default`` without knobs."""
    return " ".join(_knobs("", config)) or "default"


def counted(number: int, noun: str) -> str:
    """``1 case``, ``2 cases``: the noun in its number."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _knobs(prefix: str, config: Mapping[str, Any]) -> Iterator[str]:
    for name, value in sorted(config.items()):
        if is_mapping(value):
            yield from _knobs(f"{prefix}{name}.", value)
        else:
            yield f"{prefix}{name}={value}"
