"""The choices of one process of a job as text: processes with equal statements choose alike."""

from collections.abc import Mapping

from attn_tune.devices import environments
from attn_tune.kernels.installed import GROUP as KERNELS
from attn_tune.kernels.registry import find_kernel
from attn_tune.kernels.spec import PLATFORMS
from attn_tune.ops.installed import entry_points
from attn_tune.ops.registry import GROUP as OPS
from attn_tune.packs.reader import Pack
from attn_tune.runtime import misses
from attn_tune.runtime.active.row_index import match_level
from attn_tune.runtime.active.sources import Source
from attn_tune.runtime.active.view import View
from attn_tune.runtime.determinism import Determinism
from attn_tune.runtime.lookup.question import is_installed
from attn_tune.schema.device import Device
from attn_tune.schema.digest import canonical_json, digest_json
from attn_tune.schema.errors import IntegrityError, StorageError

type Statement = Mapping[str, str]

# The name under which a process says that it cannot read its settings, and nothing else.
UNUSABLE = "settings"


def statement_of(view: View) -> dict[str, str]:
    """Everything but the device that may change an answer, by a name that a person understands.

    Of a pack it says what the pack decides, not its evidence.
    """
    settings = view.settings
    statement = {
        "attn-tune": environments.current_environment().attn_tune or "unknown",
        # A process that records its misses or warns of them answers them like the others.
        "on a miss": "error" if misses.miss_mode() is misses.MissMode.STRICT else "answer",
        **view.overrides.statement,
        **_packages(),
    }
    if settings.determinism is not Determinism.USUAL:
        statement["determinism"] = str(settings.determinism)
    if settings.unproven:
        statement["use of unproven rows"] = "allowed"
    if settings.device_as:
        statement["device as"] = settings.device_as
    for name, source in _packs(view):
        statement[name] = f"{source.kind} " + (_decides(source.pack) if source.pack else "unreadable")
    return statement


def device_statement(view: View, device: Device) -> dict[str, str]:
    """The facts of the device that a choice depends on: its kind and size, and how well it matches those of packs.

    A clock or a power limit alone is no disagreement.
    """
    size = f"{device.units} units, {device.shared_bytes} B"
    statement = {"device": f"{device} ({device.platform} {device.family}, {size})"}
    packs = [(name, source.pack) for name, source in _packs(view) if source.pack is not None]
    for name, pack in packs:
        statement[name] = f"{pack} has {_seen_as(device, pack)}"
    return statement | _libraries(device, [pack for _, pack in packs])


def _libraries(device: Device, packs: list[Pack]) -> dict[str, str]:
    """The modules and libraries of the packs' kernels for this platform: rows of one that lacks them do not answer."""
    found = {kernel: find_kernel(kernel) for pack in packs for kernel in pack.contracts}
    specs = [spec for spec in found.values() if spec and device.platform in PLATFORMS.get(spec.backend, ())]
    modules = {module: is_installed(module) for spec in specs for module in spec.requires}
    versions = {name: environments.distribution_version(name) for spec in specs for name in spec.libraries}
    lacking = sorted(kernel for kernel, spec in found.items() if spec is None)
    return {
        **{f"module {name}": "installed" if there else "not installed" for name, there in modules.items()},
        **{f"library {name}": version or "not installed" for name, version in versions.items()},
        **({"kernels of packs": f"without {', '.join(lacking)}"} if lacking else {}),
    }


def differences(statements: Mapping[int, Statement]) -> list[str]:
    """The differences between processes, a line each: what most of them say, and who says otherwise.

    Of two camps of one size, that of the lowest process is taken for the rule.
    """
    camps: dict[str, list[int]] = {}
    for process in sorted(statements):
        camps.setdefault(canonical_json(dict(statements[process])), []).append(process)
    rule, *others = sorted(camps.values(), key=lambda camp: (-len(camp), camp[0]))
    usual = statements[rule[0]]
    lines: list[str] = []
    for camp in others:
        theirs = statements[camp[0]]
        for name in sorted({UNUSABLE} if UNUSABLE in {*usual, *theirs} else {*usual, *theirs}):
            mine, other = usual.get(name, "none"), theirs.get(name, "none")
            if mine != other:
                lines.append(f"{_who(camp)}: {name} is {other}; {_who(rule)}: {mine}")
    return lines


def _packs(view: View) -> list[tuple[str, Source]]:
    """The places of packs by number. Where a file of overrides is ``only``, no pack answers and none is named."""
    sources = () if view.overrides.only else view.sources
    return [(f"pack {number}", source) for number, source in enumerate(sources, 1)]


def _packages() -> dict[str, str]:
    """The versions of installed packages that bring ops or kernels: untuned kernels of theirs may answer."""
    points = (*entry_points(OPS), *entry_points(KERNELS))
    return {f"package {point.dist.name}": point.dist.version for point in points if point.dist}


def _decides(pack: Pack) -> str:
    """The decisions of a pack in digests. All of it is proven here: a claim would not do."""
    try:
        words = f"decides {pack.decision_digest}"
    except (IntegrityError, StorageError):
        # Sound rows of such a pack may still answer, so its bytes must be the same everywhere.
        unread = ", ".join(shard.path for shard in pack.shards if not shard.is_readable)
        words = f"broken, bytes {pack.digest}" + (f", without {unread}" if unread else "")
    else:
        if doubts := sorted([*row.key, *row.doubts] for row in pack.rows if row.doubts):
            words += f", doubts {digest_json(doubts)}"
    if pack.quarantine.entries:
        words += f", quarantine {pack.quarantine.digest}"
    return f"{pack} ({words})"


def _seen_as(device: Device, pack: Pack) -> str:
    """The relation of ``device`` to the devices of ``pack``, as a digest."""
    levels = {}
    for digest, stored in pack.devices.items():
        level = match_level(device, stored)
        if level is not None:
            mine, theirs = device.identity, stored.identity
            levels[digest] = [str(level), sum(mine[name] != theirs[name] for name in mine)]
    return f"rows for it ({digest_json(levels)[3:11]})" if levels else "no rows for it"


def _who(processes: list[int]) -> str:
    """``process 3`` or ``processes 0, 1, 2 and 61 more``."""
    shown = ", ".join(map(str, processes[:8]))
    more = f" and {len(processes) - 8} more" if len(processes) > 8 else ""
    return f"process{'es' if len(processes) > 1 else ''} {shown}{more}"
