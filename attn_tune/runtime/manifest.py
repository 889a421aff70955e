"""The sums and the manifest of a pack, read with suspicion: every failure is an IntegrityError that names the pack."""

import hashlib
import re
from collections.abc import Mapping
from typing import Any

from attn_tune.runtime.archive import QUARANTINE, SIGNED, SUMS
from attn_tune.runtime.devices import device_from_identity
from attn_tune.runtime.overrides.files import NO_OVERRIDES, OverridesFile, parse_overrides
from attn_tune.runtime.strict_json import parse_json
from attn_tune.schema.device import Device
from attn_tune.schema.environment import Environment
from attn_tune.schema.errors import IntegrityError, UsageError

# What this version reads. Packs without a quarantine list are of format 1, which older readers read too.
FORMAT = 2

_SUM_LINE = re.compile(r"([0-9a-f]{64})  (.{1,200})")


def check_sums(files: Mapping[str, bytes], where: str) -> dict[str, str]:
    """Exactly the listed files, each with its sum; returns the sums by file."""
    if SUMS not in files:
        raise IntegrityError(f"{where} has no {SUMS}")
    try:
        lines = files[SUMS].decode("ascii").split("\n")
    except UnicodeDecodeError:
        raise IntegrityError(f"{where}: {SUMS} is not plain text") from None
    if lines.pop() != "":
        raise IntegrityError(f"{where}: {SUMS} does not end with a newline; it was cut short")
    sums: dict[str, str] = {}
    for line in lines:
        match = _SUM_LINE.fullmatch(line)
        if match is None or match.group(2) in sums or match.group(2) in (SUMS, SIGNED):
            raise IntegrityError(f"{where}: {SUMS} has the bad line {line[:100]!r}")
        sums[match.group(2)] = match.group(1)
    actual = set(files) - {SUMS, SIGNED}
    if missing := sorted(set(sums) - actual):
        raise IntegrityError(f"{where} lacks {missing[0]!r}, which {SUMS} lists")
    if extra := sorted(actual - set(sums)):
        raise IntegrityError(f"{where} holds {extra[0]!r}, which {SUMS} does not list")
    for name, expected in sums.items():
        if hashlib.sha256(files[name]).hexdigest() != expected:
            raise IntegrityError(
                f"{where}: the checksum of {name!r} does not match; it was changed"
            )
    return sums


def check_format(manifest: dict[str, Any], where: str) -> None:
    written, needed = count_of(manifest, "format", where), count_of(manifest, "min_reader", where)
    if needed > FORMAT:
        raise IntegrityError(
            f"{where} was written by a newer attn-tune (format {written}, this one reads {FORMAT}); upgrade attn-tune"
        )
    if written < 1 or needed < 1 or needed > written:
        raise IntegrityError(f"{where}: format {written} with min_reader {needed} cannot be")


def read_devices(manifest: dict[str, Any], where: str) -> dict[str, Device]:
    found = {}
    for digest, identity in _table_of(manifest, "devices", where).items():
        try:
            device = device_from_identity(identity)
        except UsageError as error:
            raise IntegrityError(f"{where}: {error!s:.500}") from None
        if device.digest != digest:
            raise IntegrityError(
                f"{where}: device {device!s:.100} does not have the digest {digest[:100]!r}"
            )
        found[digest] = device
    return found


def read_environments(manifest: dict[str, Any], where: str) -> dict[str, Environment]:
    known = Environment.__dataclass_fields__
    found = {}
    for digest, data in _table_of(manifest, "environments", where).items():
        if set(data) != set(known) or not all(isinstance(v, str) for v in data.values()):
            raise IntegrityError(
                f"{where}: environment {digest[:100]!r} must have exactly the known fields"
            )
        environment = Environment(**data)
        if environment.digest != digest:
            raise IntegrityError(
                f"{where}: an environment does not have the digest {digest[:100]!r}"
            )
        found[digest] = environment
    return found


def read_contracts(manifest: dict[str, Any], where: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for entry in list_of(manifest, "kernels", where):
        if not isinstance(entry, dict):
            raise IntegrityError(f"{where}: 'kernels' must hold objects")
        kernel = text_of(entry, "kernel", where)
        if kernel in found or "/" not in kernel:
            raise IntegrityError(f"{where}: kernel {kernel[:100]!r} must be op/name, once")
        found[kernel] = count_of(entry, "contract", where)
    return found


def read_gate(manifest: dict[str, Any], where: str) -> Mapping[str, Any]:
    found = manifest.get("gate", {})
    if not isinstance(found, dict):
        raise IntegrityError(f"{where}: 'gate' of the manifest must be an object")
    return found


def read_quarantine_list(
    manifest: dict[str, Any],
    files: Mapping[str, bytes],
    sums: Mapping[str, str],
    pack: str,
    where: str,
) -> OverridesFile:
    """The list that the pack carries; an empty one if it carries none."""
    said = manifest.get("quarantine")
    if (said is None) != (QUARANTINE not in files):
        raise IntegrityError(
            f"{where}: its manifest names a quarantine list if, and only if, it holds {QUARANTINE}"
        )
    if said is None:
        return NO_OVERRIDES
    if not isinstance(said, dict) or text_of(said, "sha256", where) != sums[QUARANTINE]:
        raise IntegrityError(f"{where}: the manifest's checksum of {QUARANTINE} does not match")
    data = files[QUARANTINE]
    label = f"{where}: {QUARANTINE}"
    found = parse_overrides(parse_json(data, label), f"pack {pack}", label)
    if found.only or not all(entry.never for entry in found.entries):
        raise IntegrityError(f"{label} may hold 'never' entries alone")
    if not found.entries or len(found.entries) != count_of(said, "entries", where):
        raise IntegrityError(f"{label} does not hold the entries that the manifest says")
    return found


def text_of(data: dict[str, Any], name: str, where: str) -> str:
    value = data.get(name)
    if not isinstance(value, str) or not 0 < len(value) <= 1000 or not value.isprintable():
        raise IntegrityError(f"{where}: {name!r} of the manifest must be a text, got {value!r:.60}")
    return value


def count_of(data: dict[str, Any], name: str, where: str) -> int:
    value = data.get(name)
    if type(value) is not int or value < 0:
        raise IntegrityError(
            f"{where}: {name!r} of the manifest must be a count, got {value!r:.60}"
        )
    return value


def list_of(data: dict[str, Any], name: str, where: str) -> list[Any]:
    value = data.get(name)
    if not isinstance(value, list):
        raise IntegrityError(f"{where}: {name!r} of the manifest must be a list")
    return value


def _table_of(data: dict[str, Any], name: str, where: str) -> dict[str, dict[str, Any]]:
    value = data.get(name)
    if not isinstance(value, dict) or not all(isinstance(v, dict) for v in value.values()):
        raise IntegrityError(f"{where}: {name!r} of the manifest must be a table by digest")
    return value
