"""Configs that must not run: known to be wrong, to crash or to hang, whatever a pack or a heuristic says.

A list is a JSON file. Every field of an entry but ``reason`` narrows it down, and one that is left out matches all::

    {"format": 1, "entries": [
      {"op": "flash_attention", "kernel": "triton", "direction": "bwd", "device": "sm_90",
       "config": {"dq": {"num_warps": 8}}, "signature": {"h": 256}, "reason": "wrong dq, seen on 2026-09-01"}
    ]}

``device`` is a variant or a family. ``config`` and ``signature`` match what agrees with them in the knobs and fields
they name.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from attn_tune.runtime.strict_json import parse_json
from attn_tune.schema.device import Device
from attn_tune.schema.digest import canonical_json, digest_text
from attn_tune.schema.errors import IntegrityError
from attn_tune.schema.signature import Value

QUARANTINE = "ATTN_TUNE_QUARANTINE"
FORMAT = 1

_TEXTS = ("op", "kernel", "direction", "device", "reason")
_TABLES = ("config", "signature")
_MAX_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Entry:
    """One thing that must not run; ``""`` and empty tables match everything."""

    reason: str
    op: str = ""
    kernel: str = ""
    direction: str = ""
    device: str = ""
    config: Mapping[str, Any]
    signature: Mapping[str, Any]

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
      entries: in the order of the files.
      broken: why a list could not be read, ``""`` if all could.
        Nothing stored may run then, for any of it may be unsafe.
      digest: names all of it; ``""`` for no list.
    """

    entries: tuple[Entry, ...] = ()
    broken: str = ""
    digest: str = ""

    def reason(
        self,
        op: str,
        kernel: str,
        direction: str,
        device: Device,
        config: Mapping[str, Any],
        values: Mapping[str, Value],
    ) -> str | None:
        """Why this may not run; None if no list speaks of it. ``values`` are the signature's fields, defaults too."""
        for entry in self.entries:
            if entry.matches(op, kernel, direction, device, config, values):
                return f"in quarantine: {entry.reason}"
        return None


NONE = Quarantine()


def read_quarantine(paths: tuple[str, ...]) -> Quarantine:
    """Reads the lists at ``paths``. Never raises for a bad one: see ``Quarantine.broken``."""
    entries: list[Entry] = []
    said: list[str] = []
    broken = ""
    for path in paths:
        try:
            data = _read(path)
            entries += entries_from_json(parse_json(data, path), path)
            said.append(digest_text(data.decode("utf-8")))
        except (OSError, UnicodeDecodeError, IntegrityError) as error:
            broken = broken or f"the quarantine list {path} cannot be read: {error}"
            said.append("broken")
    return Quarantine(tuple(entries), broken, digest_text(canonical_json(said)) if said else "")


def entries_from_json(data: Any, where: str) -> list[Entry]:
    """The entries of one parsed list.

    Raises:
      IntegrityError: it is not a list of this format; the sentence says what is wrong.
    """
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise IntegrityError(f"{where}: not a quarantine list of format {FORMAT}")
    items = data.get("entries")
    if not isinstance(items, list):
        raise IntegrityError(f"{where}: 'entries' must be a list")
    return [_entry(item, f"{where}: entry {number}") for number, item in enumerate(items, 1)]


def quarantine_paths(environ: Mapping[str, str], data_directory: str) -> tuple[str, ...]:
    """``ATTN_TUNE_QUARANTINE`` (files), then ``quarantine.json`` in the user's data directory if it is there."""
    named = [path for path in environ.get(QUARANTINE, "").split(os.pathsep) if path]
    own = os.path.join(data_directory, "quarantine.json") if data_directory else ""
    return (*named, own) if own and os.path.lexists(own) else tuple(named)


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        data = file.read(_MAX_BYTES + 1)
    if len(data) > _MAX_BYTES:
        raise IntegrityError(f"{path} is larger than {_MAX_BYTES} bytes")
    return data


def _entry(item: Any, where: str) -> Entry:
    if not isinstance(item, dict):
        raise IntegrityError(f"{where} is not an object")
    # A condition that this version does not know would be ignored, and the entry would match too much or too little.
    if unknown := sorted(set(item) - {*_TEXTS, *_TABLES}):
        raise IntegrityError(f"{where} has the unknown field {unknown[0]!r}")
    for name in _TEXTS:
        if not isinstance(item.get(name, ""), str):
            raise IntegrityError(f"{where}: {name!r} must be a text")
    for name in _TABLES:
        if not isinstance(item.get(name, {}), dict):
            raise IntegrityError(f"{where}: {name!r} must be an object")
    if not item.get("reason"):
        raise IntegrityError(f"{where} gives no 'reason'")
    return Entry(**{"config": {}, "signature": {}, **item})


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
