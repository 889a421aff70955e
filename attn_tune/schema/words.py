"""Numbers, configs and counts as people read them: one spelling for tables, explanations and errors."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
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


def rate(value: float, unit: str) -> str:
    """Three digits, a prefix and a unit: ``6.47 GFLOP/s``, ``819 GB/s``, ``3.35 TB/s``."""
    value, prefix = float(value), ""
    for larger in ("k", "M", "G", "T", "P"):
        if value < 999.5:
            break
        value, prefix = value / 1000, larger
    digits = 0 if value >= 99.95 else 1 if value >= 9.995 else 2
    return f"{value:.{digits}f} {prefix}{unit}"


def printable(text: str) -> str:
    """The text with control characters and marks of direction as escapes: a terminal must not obey a stored text."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)


def config_words(config: Mapping[str, Any]) -> str:
    """A config on one line, by name, as commands take it: ``rows=64 second.columns=32``; ``no knobs`` without any."""
    return " ".join(_knobs("", config)) or "no knobs"


def command_words(argv: Sequence[str]) -> str:
    """A command line of attn-tune as it was typed: the program by its name, without its folder."""
    program, *words = argv or ("attn-tune",)
    name = PurePath(program).name
    return shlex.join(["python", "-m", "attn_tune", *words] if name == "__main__.py" else [name, *words])


def counted(number: int, noun: str, plural: str = "") -> str:
    """``1 case``, ``2 cases``: the noun in its number; ``plural`` where that is not ``noun`` with an s."""
    return f"{number} {noun}" if number == 1 else f"{number} {plural or noun + 's'}"


def _knobs(prefix: str, config: Mapping[str, Any]) -> Iterator[str]:
    for name, value in sorted(config.items()):
        if is_mapping(value):
            yield from _knobs(f"{prefix}{name}.", value)
        else:
            yield f"{prefix}{name}={value}"
