"""What one process of a job decides by, as text: processes with equal statements choose alike."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from attn_tune.packs.reader import Pack
from attn_tune.runtime import environments, misses
from attn_tune.runtime.determinism import Determinism
from attn_tune.runtime.shelf import match_level
from attn_tune.schema.device import Device
from attn_tune.schema.digest import canonical_json, digest_json
from attn_tune.schema.errors import IntegrityError, StorageError

if TYPE_CHECKING:
    from attn_tune.runtime.overlay import View

type Statement = Mapping[str, str]


def statement_of(view: "View") -> dict[str, str]:
    """Everything but the device that may change an answer, by a name that a person understands.

    Of a pack it says what the pack decides, not its evidence.
    """
    process = view.snapshot
    said = {
        "attn-tune": environments.current_environment().attn_tune or "unknown",
        # Who records or warns of its misses answers them like everybody else.
        "misses": "are errors" if misses.miss_mode() is misses.MissMode.STRICT else "are answered",
    }
    if process.determinism is not Determinism.USUAL:
        said["determinism"] = str(process.determinism)
    if process.unproven:
        said["use of unproven rows"] = "allowed"
    if process.device_as:
        said["device as"] = process.device_as
    if process.quarantine.digest:
        broken = " (unreadable)" if process.quarantine.broken else ""
        said["quarantine"] = process.quarantine.digest + broken
    if process.lockfile is not None:
        said["lockfile"] = process.lockfile.digest
        return said
    for number, pin in enumerate(view.pins, 1):
        # Where the file is may differ from process to process.
        subject = replace(pin, origin="")
        said[f"pin {number}"] = f"{subject} to {pin.kernel} {pin.config_json}"
    for number, source in enumerate(view.sources, 1):
        pack = source.pack
        said[f"pack {number}"] = f"{source.kind} " + (_decides(pack) if pack else "unreadable")
    return said


def _decides(pack: Pack) -> str:
    """What a pack is to a lookup. Here all of it is proven: a claim would not do."""
    try:
        said = f"decides {pack.decision_digest}"
    except (IntegrityError, StorageError):
        # Sound rows of such a pack may still answer, so its bytes must be the same everywhere.
        unread = ", ".join(shard.path for shard in pack.shards if not shard.is_readable)
        said = f"broken, bytes {pack.digest}" + (f", without {unread}" if unread else "")
    else:
        if doubts := sorted([*row.key, *row.doubts] for row in pack.rows if row.doubts):
            said += f", doubts {digest_json(doubts)}"
    if pack.quarantine.digest:
        said += f", quarantine {pack.quarantine.digest}"
    return f"{pack} ({said})"


def device_statement(view: "View", device: Device) -> dict[str, str]:
    """What a choice depends on: the device's kind and size, and which of a pack's devices it matches how well.

    A clock or a power limit alone is no disagreement.
    """
    said = {
        "device": f"{device} ({device.platform} {device.family}, {device.units} units, {device.shared_bytes} B)"
    }
    if view.snapshot.lockfile is None:
        for number, source in enumerate(view.sources, 1):
            if source.pack is not None:
                said[f"pack {number}"] = f"{source.pack} has {_seen_as(device, source.pack)}"
    return said


def _seen_as(device: Device, pack: Pack) -> str:
    """How ``device`` relates to the devices of ``pack``, as a digest."""
    levels = {}
    for digest, stored in pack.devices.items():
        level = match_level(device, stored)
        if level is not None:
            mine, theirs = device.identity, stored.identity
            levels[digest] = [str(level), sum(mine[name] != theirs[name] for name in mine)]
    return f"rows for it ({digest_json(levels)[3:11]})" if levels else "no rows for it"


def differences(statements: Mapping[int, Statement]) -> list[str]:
    """In what the processes differ, a line each: what most of them say, and who says otherwise.

    Of two camps of one size, that of the lowest process is taken for the rule.
    """
    camps: dict[str, list[int]] = {}
    for process in sorted(statements):
        camps.setdefault(canonical_json(dict(statements[process])), []).append(process)
    rule, *others = sorted(camps.values(), key=lambda camp: (-len(camp), camp[0]))
    usual = statements[rule[0]]
    lines = []
    for camp in others:
        theirs = statements[camp[0]]
        for name in sorted({*usual, *theirs}):
            mine, other = usual.get(name, "none"), theirs.get(name, "none")
            if mine != other:
                lines.append(f"{_who(camp)}: {name} is {other}; {_who(rule)}: {mine}")
    return lines


def _who(processes: list[int]) -> str:
    """``process 3`` or ``processes 0, 1, 2 and 61 more``."""
    shown = ", ".join(map(str, processes[:8]))
    more = f" and {len(processes) - 8} more" if len(processes) > 8 else ""
    return f"process{'es' if len(processes) > 1 else ''} {shown}{more}"
