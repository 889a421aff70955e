"""Pins in files: one config for a user's jobs, whatever the packs say, without a change of their code::

    {"format": 1, "pins": [
      {"op": "flash_attention", "direction": "fwd", "kernel": "xla", "config": {"chunk_q": 64, "chunk_k": 128},
       "device": "nvidia-h200", "reason": "A/B test of 2026-09"}
    ]}

``signature`` (a whole one) and ``device`` (a variant or a family) narrow a pin down.
"""

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attn_tune.packs.plain_files import read_limited
from attn_tune.packs.strict_json import parse_json
from attn_tune.runtime.pins import Pin
from attn_tune.runtime.whole_files import change_whole
from attn_tune.schema.digest import canonical_json, digest_text
from attn_tune.schema.directories import config_directory
from attn_tune.schema.errors import IntegrityError, StorageError

PINS = "ATTN_TUNE_PINS"
FORMAT = 1

_NAME = "pins.json"
_NEEDED = ("op", "direction", "kernel")
_TEXTS = (*_NEEDED, "signature", "device", "reason")
_log = logging.getLogger("attn_tune")


@dataclass(frozen=True, slots=True, eq=False)
class Pins:
    """The pins of files, in order. ``broken`` says which files were ignored, and why; ``digest`` names all of it."""

    pins: tuple[Pin, ...] = ()
    broken: tuple[str, ...] = ()
    digest: str = ""


NO_PINS = Pins()


def user_pins(environ: Mapping[str, str]) -> str:
    """``pins.json`` in the user's configuration directory, which lookups find without being told; ``""`` without a
    home."""
    folder = config_directory(environ)
    return os.path.join(folder, _NAME) if folder else ""


def pins_in_force(environ: Mapping[str, str]) -> Pins:
    """The pins that a job of this user would go by now: of ``ATTN_TUNE_PINS`` (files), then the user's own.

    Never raises: a pin is a wish, and a file that cannot be read is ignored with a warning.
    """
    paths = [path for path in environ.get(PINS, "").split(os.pathsep) if path]
    own = user_pins(environ)
    if own and os.path.lexists(own):
        paths.append(own)
    pins: list[Pin] = []
    broken: list[str] = []
    for path in paths:
        try:
            pins += read_pins(path)
        except (StorageError, IntegrityError) as error:
            broken.append(str(error))
            _log.warning("ignored: %s", error)
    said = [pin.line for pin in pins] + broken
    return Pins(tuple(pins), tuple(broken), digest_text(canonical_json(said)) if said else "")


def read_pins(path: str | os.PathLike[str]) -> list[Pin]:
    """The pins of one file.

    Raises:
      StorageError: it cannot be read.
      IntegrityError: it is no file of pins; the sentence says what is wrong.
    """
    where = f"the pins in {path}"
    data = parse_json(read_limited(path, where), where)
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise IntegrityError(f"{where} are not of format {FORMAT}")
    items = data.get("pins")
    if not isinstance(items, list):
        raise IntegrityError(f"{where}: 'pins' must be a list")
    return [_pin(item, f"{where}: pin {n}", os.fspath(path)) for n, item in enumerate(items, 1)]


def change_pins(
    path: str | os.PathLike[str], change: Callable[[list[Pin]], list[Pin]]
) -> list[Pin]:
    """Writes what ``change`` makes of the pins at ``path``, whole or not at all; returns them.

    Raises:
      As ``read_pins``; StorageError also if it cannot be written.
    """
    return change_whole(path, f"the pins in {path}", read_pins, change, _text)


def _text(pins: Iterable[Pin]) -> str:
    lines: Sequence[str] = sorted({pin.line for pin in pins})
    body = "[\n" + ",\n".join(lines) + "\n]" if lines else "[]"
    return f'{{"format":{FORMAT},\n"pins":{body}}}\n'


def _pin(item: Any, where: str, origin: str) -> Pin:
    if not isinstance(item, dict):
        raise IntegrityError(f"{where} is not an object")
    if unknown := sorted(set(item) - {*_TEXTS, "config"}):
        raise IntegrityError(f"{where} has the unknown field {unknown[0]!r}")
    for name in _TEXTS:
        value = item.get(name, "")
        if not isinstance(value, str) or not value.isprintable() or (name in _NEEDED and not value):
            raise IntegrityError(f"{where}: {name!r} must be a text")
    if not isinstance(item.get("config"), dict):
        raise IntegrityError(f"{where}: 'config' must be an object")
    texts = {name: item.get(name, "") for name in _TEXTS}
    return Pin(**texts, config_json=canonical_json(item["config"]), origin=origin)
