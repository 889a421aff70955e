"""Check everything that sweeps and lookups need.

Example: attn-tune doctor
"""

import enum
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import typer

from attn_tune.commands.shared import options, output
from attn_tune.commands.shared.exit_codes import FAILED
from attn_tune.schema import AttnTuneError
from attn_tune.schema.words import counted


class Verdict(enum.StrEnum):
    """The result of a check."""

    OK = "ok"
    """Nothing is missing."""
    WARN = "warn"
    """Something is limited."""
    FAIL = "fail"
    """Sweeps are impossible."""


@dataclass(frozen=True, slots=True)
class Check:
    """A check: its ``name``, a sentence of ``detail`` and its ``verdict``."""

    name: str
    detail: str
    verdict: Verdict = Verdict.OK


# Packages, and their use where sweeps can do without.
_PACKAGES = {
    "attn-tune": "the code is used from a checkout",
    "jax": "",
    "jaxlib": "",
    "triton": "the Triton kernels need it, on NVIDIA GPUs",
    "scikit-learn": "--strategy surrogate needs it: pip install 'attn-tune[search]'",
    "pandas": "",
    "sqlite-utils": "",
}


def command(db: options.DatabaseIfAny, json: options.Json = False) -> None:
    checks = list(_checks(db))
    if json:
        output.emit_json(checks=[asdict(check) for check in checks])
    else:
        for check in checks:
            output.say(f"{check.verdict:<4}  {check.name:<12} {check.detail}", indent=19)
    if any(check.verdict is Verdict.FAIL for check in checks):
        raise typer.Exit(FAILED)


def _checks(db: Path | None) -> Iterator[Check]:
    from attn_tune.kernels import registry

    yield Check("python", sys.version.split()[0])
    yield from map(_package, _PACKAGES)
    yield _guarded("device", _device)
    yield _guarded("kernels", _kernels)
    yield from _assembler()
    yield from _left_out()
    for package in registry.broken_packages():
        yield Check("kernels", f"{package}; mend, upgrade or uninstall the package", Verdict.FAIL)
    yield _guarded("timer", _timer)
    yield _sqlite()
    if db:
        yield _guarded("database", lambda: _database(db))
        yield _filesystem(db)
        yield _writable(db)
    else:
        yield Check("database", "none: neither HOME nor XDG_DATA_HOME is set; sweeps need --db PATH", Verdict.WARN)
    yield from _packs()
    yield _guarded("settings", _settings)


def _guarded(name: str, check: Callable[[], Check]) -> Check:
    try:
        return check()
    except (AttnTuneError, RuntimeError, ImportError) as error:
        # JAX reports a device that cannot be used as a RuntimeError.
        return Check(name, str(error).strip().split("\n")[0], Verdict.FAIL)


def _package(name: str) -> Check:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return Check(name, version(name))
    except PackageNotFoundError:
        use = _PACKAGES[name]
        verdict = Verdict.WARN if use else Verdict.FAIL
        return Check(name, f"not installed; {use or 'nothing works without it'}", verdict)


def _settings() -> Check:
    """A check that lookups can read what the environment asks for."""
    from attn_tune.runtime import misses
    from attn_tune.runtime.active.layers import current_view
    from attn_tune.runtime.variables import unknown

    view = current_view()
    misses.miss_mode()
    if view.overrides.broken:
        return Check("settings", view.overrides.broken, Verdict.FAIL)
    if unread := unknown(os.environ):
        return Check("settings", f"nothing reads {', '.join(unread)}", Verdict.WARN)
    return Check("settings", "lookups can read the environment")


def _device() -> Check:
    from attn_tune.devices.identity import current_device

    device = current_device()
    return Check("device", f"{device} ({device.platform} {device.family})")


def _kernels() -> Check:
    from attn_tune.kernels import registry

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ``_checks`` names broken packages
        found = registry.kernels()
    if not found:
        return Check("kernels", "none is registered", Verdict.FAIL)
    ops = len({spec.op for spec in found.values()})
    return Check("kernels", f"{len(found)} of {counted(ops, 'op')}; 'attn-tune kernels' lists them")


def _left_out() -> Iterator[Check]:
    """A check a reason why kernels of extras are no candidates here."""
    from attn_tune.kernels.registry import kernels
    from attn_tune.runtime.lookup.question import missing

    names: dict[str, list[str]] = {}
    for spec in kernels().values():
        if spec.extra and (reason := missing(spec)):
            names.setdefault(reason, []).append(spec.id)
    for reason, ids in names.items():
        yield Check("extras", f"{reason}; left out without it: {', '.join(ids)}")


def _assembler() -> Iterator[Check]:
    """A check of what assembles Triton's kernels, where it is known to be wrong."""
    from attn_tune.devices.identity import current_device
    from attn_tune.kernels.lang.triton.limits import refuses_assembler

    if reason := refuses_assembler(current_device()):
        yield Check("assembler", f"kernels of gates a channel are left out: {reason}", Verdict.WARN)


def _timer() -> Check:
    from attn_tune.devices.identity import current_device
    from attn_tune.tuner.work.timers.choose import choose_timer

    name = choose_timer().name
    if name == "host" and current_device().platform != "cpu":
        remark = "only the host's clock works; small kernels are hidden by their launch"
        return Check("timer", remark, Verdict.WARN)
    return Check("timer", name)


def _sqlite() -> Check:
    import sqlite3

    from attn_tune.db.store.health import has_wal_reset_bug

    version = sqlite3.sqlite_version
    # The operator ->> came with 3.38.
    if sqlite3.sqlite_version_info < (3, 38):
        return Check("sqlite", f"{version} is too old; 3.38 or newer is needed", Verdict.FAIL)
    if has_wal_reset_bug(version):
        remark = "may damage a write-ahead log that several processes fold in at once, very rarely"
        return Check("sqlite", f"{version} ({remark}; fixed in 3.51.3)")
    return Check("sqlite", version)


def _database(db: Path) -> Check:
    if not db.exists():
        return Check("database", f"{db} does not exist yet; the first sweep makes it")
    from attn_tune.db import Database

    with Database.open(db, read_only=True) as database:
        problems = database.integrity_check()
        facts = database.describe()
    if problems:
        return Check("database", f"{db}: {'; '.join(problems[:3])}", Verdict.FAIL)
    return Check("database", f"{db}: {facts}")


def _filesystem(db: Path) -> Check:
    from attn_tune.db.store.filesystem import filesystem_type, is_network

    kind = filesystem_type(db) or "unknown"
    if is_network(db):
        remark = (
            "a network file system: no write-ahead log, so readers wait for writers; let each host have a database of "
            "its own on a local disk, and use `attn-tune lab merge`"
        )
        return Check("filesystem", f"{db} is on {kind}, {remark}", Verdict.WARN)
    return Check("filesystem", kind)


def _writable(db: Path) -> Check:
    folder = db.absolute().parent
    while not folder.exists():
        folder = folder.parent
    if os.access(folder, os.W_OK):
        return Check("storage", f"{folder} can be written")
    return Check("storage", f"{folder} cannot be written; choose another --db", Verdict.FAIL)


def _packs() -> Iterator[Check]:
    from attn_tune.packs.reader import read_pack
    from attn_tune.runtime.active.sources import locations

    found = locations(os.environ)
    paths = (*found.user, *found.wheels, *found.own)
    if not paths:
        yield Check("packs", "none; calls use the kernels' untuned configs")
    for path in paths:
        try:
            pack = read_pack(path, signed=False if path in found.own else None)
        except AttnTuneError as error:
            yield Check("pack", str(error), Verdict.FAIL)
        else:
            rows = counted(len(pack.rows), "row")
            # A folder of the package itself says nothing, and such paths are wider than a terminal.
            where = f" of {found.wheels.get(path, 'attn-tune')}" if path not in found.user else f", in {path}"
            yield Check("pack", f"{pack}, {rows}{where}")
