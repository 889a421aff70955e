"""Configs that must not run: known to be wrong, to crash or to hang, whatever a pack or a heuristic says.

A list is a JSON file. Every field of an entry but ``reason`` narrows it down, and one that is left out matches all::

    {"format": 1, "entries": [
      {"op": "flash_attention", "kernel": "triton", "direction": "bwd", "device": "sm_90",
       "config": {"dq": {"num_warps": 8}}, "signature": {"h": 256}, "reason": "wrong dq, seen on 2026-09-01"}
    ]}

``device`` is a variant or a family. ``config`` and ``signature`` match what agrees with them in the knobs and fields
they name. Where lists are found and how they are written: ``quarantine_files``. A pack may carry one as well.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from attn_tune.schema.device import Device
from attn_tune.schema.digest import canonical_json, digest_text
from attn_tune.schema.errors import IntegrityError
from attn_tune.schema.signature import Value

FORMAT = 1

_TEXTS = ("op", "kernel", "direction", "device", "reason")
_TABLES = ("config", "signature")
MAX_TEXT = 1000


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Entry:
    """One thing that must not run; ``""`` and empty tables match everything. ``origin`` says whose list it is in."""

    reason: str
    op: str = ""
    kernel: str = ""
    direction: str = ""
    device: str = ""
    config: Mapping[str, Any]
    signature: Mapping[str, Any]
    origin: str = ""

    @property
    def line(self) -> str:
        """As a list holds it: canonical JSON, without what matches everything. Equal lines say the same."""
        said = {name: getattr(self, name) for name in (*_TEXTS, *_TABLES) if getattr(self, name)}
        return canonical_json({n: dict(v) if n in _TABLES else v for n, v in said.items()})

    @property
    def id(self) -> str:
        """A short name of what it says."""
        return digest_text(self.line)[3:11]

    @property
    def condition(self) -> str:
        """What it speaks of, for people: ``kernel triton, device sm_90, config {"num_warps":8}``."""
        parts = [f"{n} {v}" for n in _TEXTS[:-1] if (v := getattr(self, n))]
        parts += [f"{n} {canonical_json(dict(v))}" for n in _TABLES if (v := getattr(self, n))]
        return ", ".join(parts) or "everything"

    def matches(
        self,
        op: str,
        kernel: str,
        direction: str,
        device: Device,
        config: Mapping[str, Any],
        values: Mapping[str, Value],
    ) -> bool:
        """Whether it speaks of this config for this problem on this device."""
        return (
            self.op in ("", op)
            and self.kernel in ("", kernel)
            and self.direction in ("", direction)
            and self.device in ("", device.variant, device.family)
            and _agrees(self.signature, values)
            and _agrees(self.config, config)
        )


@dataclass(frozen=True, slots=True, eq=False)
class Quarantine:
    """The lists in force together.

    Attributes:
      entries: in the order of the lists.
      broken: why a list could not be read, ``""`` if all could.
        Nothing stored may run then, for any of it may be unsafe.
      digest: names all of it; ``""`` for no list.
    """

    entries: tuple[Entry, ...] = ()
    broken: str = ""
    digest: str = ""

    def entry(
        self,
        op: str,
        kernel: str,
        direction: str,
        device: Device,
        config: Mapping[str, Any],
        values: Mapping[str, Value],
    ) -> Entry | None:
        """The first entry that speaks of this. ``values`` are the signature's fields, defaults too."""
        for entry in self.entries:
            if entry.matches(op, kernel, direction, device, config, values):
                return entry
        return None

    def reason(
        self,
        op: str,
        kernel: str,
        direction: str,
        device: Device,
        config: Mapping[str, Any],
        values: Mapping[str, Value],
    ) -> str | None:
        """Why this may not run; None if no list speaks of it. As ``entry``."""
        found = self.entry(op, kernel, direction, device, config, values)
        if found is None:
            return None
        return f"in quarantine: {found.reason}" + (f" ({found.origin})" if found.origin else "")


NONE = Quarantine()


def joined(lists: Iterable[Quarantine]) -> Quarantine:
    """All of ``lists`` in force together."""
    given = [one for one in lists if one.digest]
    if len(given) < 2:
        return given[0] if given else NONE
    return Quarantine(
        tuple(entry for one in given for entry in one.entries),
        next((one.broken for one in given if one.broken), ""),
        digest_text(canonical_json([one.digest for one in given])),
    )


def list_text(entries: Iterable[Entry]) -> str:
    """A list of ``entries``, one a line, sorted, each once: equal lists are equal bytes."""
    lines = sorted({entry.line for entry in entries})
    body = "[\n" + ",\n".join(lines) + "\n]" if lines else "[]"
    return f'{{"entries":{body},\n"format":{FORMAT}}}\n'


def entries_from_json(data: Any, where: str, origin: str = "") -> list[Entry]:
    """The entries of one parsed list. ``origin`` is what ``Entry.origin`` says.

    Raises:
      IntegrityError: it is not a list of this format; the sentence says what is wrong.
    """
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise IntegrityError(f"{where}: not a quarantine list of format {FORMAT}")
    items = data.get("entries")
    if not isinstance(items, list):
        raise IntegrityError(f"{where}: 'entries' must be a list")
    return [
        _entry(item, f"{where}: entry {number}", origin) for number, item in enumerate(items, 1)
    ]


def _entry(item: Any, where: str, origin: str) -> Entry:
    if not isinstance(item, dict):
        raise IntegrityError(f"{where} is not an object")
    # A condition that this version does not know would be ignored, and the entry would match too much or too little.
    if unknown := sorted(set(item) - {*_TEXTS, *_TABLES}):
        raise IntegrityError(f"{where} has the unknown field {unknown[0]!r}")
    for name in _TEXTS:
        text = item.get(name, "")
        # What a list says is printed, and a pack's list may be anybody's.
        if not isinstance(text, str) or len(text) > MAX_TEXT or not text.isprintable():
            raise IntegrityError(
                f"{where}: {name!r} must be a text of one line, of at most {MAX_TEXT} characters"
            )
    for name in _TABLES:
        if not isinstance(item.get(name, {}), dict):
            raise IntegrityError(f"{where}: {name!r} must be an object")
    if not item.get("reason"):
        raise IntegrityError(f"{where} gives no 'reason'")
    return Entry(**{"config": {}, "signature": {}, **item}, origin=origin)


def _agrees(wanted: Mapping[str, Any], actual: Mapping[str, Any]) -> bool:
    for name, value in wanted.items():
        if name not in actual:
            return False
        have = actual[name]
        if isinstance(value, dict) and isinstance(have, Mapping):
            if not _agrees(value, have):
                return False
        elif value != have:
            return False
    return True
