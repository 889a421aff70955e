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
from attn_tune.schema import AttnTuneError, StorageError


class Verdict(enum.StrEnum):
    """The result of a check. ``warn`` limits something, ``fail`` makes sweeps impossible."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Check:
    """A check: its ``name``, ``verdict`` and a sentence of ``detail``."""

    name: str
    verdict: Verdict
    detail: str


def command(db: options.Database, json: options.Json = False) -> None:
    checks = list(_checks(db))
    if json:
        output.emit_json({"checks": [asdict(check) for check in checks]})
    else:
        for check in checks:
            print(f"{check.verdict:<4}  {check.name:<12} {check.detail}")
    if any(check.verdict is Verdict.FAIL for check in checks):
        raise typer.Exit(FAILED)


def _checks(db: Path) -> Iterator[Check]:
    yield _python()
    yield from _versions()
    yield _guarded("device", _device)
    yield _guarded("kernels", _kernels)
    yield from _kernel_packages()
    yield _guarded("timer", _timer)
    yield _sqlite()
    yield _guarded("database", lambda: _database(db))
    yield _filesystem(db)
    yield _writable(db)
    yield from _packs()


def _guarded(name: str, check: Callable[[], Check]) -> Check:
    try:
        return check()
    except (AttnTuneError, RuntimeError, ImportError) as error:
        # JAX reports a device that cannot be used as a RuntimeError.
        return Check(name, Verdict.FAIL, str(error).strip().split("\n")[0])


def _python() -> Check:
    found = sys.version.split()[0]
    good = sys.version_info >= (3, 12)
    return Check("python", Verdict.OK if good else Verdict.FAIL, found)


def _versions() -> Iterator[Check]:
    from importlib.metadata import PackageNotFoundError, version

    for name, remark in (
        ("attn-tune", "the code is used from a checkout"),
        ("jax", ""),
        ("jaxlib", ""),
        ("triton", "the Triton kernels need it, on NVIDIA GPUs"),
        ("scikit-learn", "--strategy surrogate needs it: pip install 'attn-tune[search]'"),
        ("pandas", ""),
        ("sqlite-utils", ""),
    ):
        try:
            yield Check(name, Verdict.OK, version(name))
        except PackageNotFoundError:
            missing = Verdict.WARN if remark else Verdict.FAIL
            yield Check(name, missing, f"not installed; {remark or 'nothing works without it'}")


def _device() -> Check:
    from attn_tune.runtime.devices import current_device

    device = current_device()
    return Check("device", Verdict.OK, f"{device} ({device.platform} {device.family})")


def _kernels() -> Check:
    from attn_tune.kernels import registry

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ``_kernel_packages`` says it
        found = registry.kernels()
    verdict = Verdict.OK if found else Verdict.FAIL
    return Check("kernels", verdict, ", ".join(found) or "none is registered")


def _kernel_packages() -> Iterator[Check]:
    from attn_tune.kernels import registry

    for package in registry.broken_packages():
        remedy = "mend, upgrade or uninstall the package"
        yield Check("kernels", Verdict.FAIL, f"{package}; {remedy}")


def _timer() -> Check:
    from attn_tune.runtime.devices import current_device
    from attn_tune.tuner.timers import choose_timer

    name = choose_timer().name
    if name == "host" and current_device().platform != "cpu":
        return Check(
            "timer",
            Verdict.WARN,
            "only the host's clock works; small kernels are hidden by their launch",
        )
    return Check("timer", Verdict.OK, name)


def _sqlite() -> Check:
    import sqlite3

    from attn_tune.db.health import has_wal_reset_bug

    version = sqlite3.sqlite_version
    # STRICT tables came with 3.37.
    if sqlite3.sqlite_version_info < (3, 37):
        return Check("sqlite", Verdict.FAIL, f"{version} is too old; 3.37 or newer is needed")
    if has_wal_reset_bug(version):
        remark = "may damage a write-ahead log that several processes fold in at once, very rarely"
        return Check("sqlite", Verdict.OK, f"{version} ({remark}; fixed in 3.51.3)")
    return Check("sqlite", Verdict.OK, version)


def _database(db: Path) -> Check:
    if not db.exists():
        return Check("database", Verdict.OK, f"{db} does not exist yet; the first sweep makes it")
    from attn_tune.db import Database
    from attn_tune.db.connection import stored_version
    from attn_tune.db.migrations import SCHEMA_VERSION

    try:
        with Database.open(db, read_only=True) as database:
            problems = database.integrity_check()
            facts = database.describe()
    except StorageError:
        if (version := stored_version(db)) >= SCHEMA_VERSION:
            raise
        remark = (
            f"has the older schema {version}; the next sweep, or `attn-tune lab gc`, migrates it"
        )
        return Check("database", Verdict.WARN, f"{db} {remark}")
    if problems:
        return Check("database", Verdict.FAIL, f"{db}: {'; '.join(problems[:3])}")
    return Check("database", Verdict.OK, f"{db}: {facts}")


def _filesystem(db: Path) -> Check:
    from attn_tune.db.filesystem import filesystem_type, is_network

    kind = filesystem_type(db) or "unknown"
    if is_network(db):
        remark = (
            "a network file system: no write-ahead log, so readers wait for writers; let each host have a database of "
            "its own on a local disk, and use `attn-tune lab merge`"
        )
        return Check("filesystem", Verdict.WARN, f"{db} is on {kind}, {remark}")
    return Check("filesystem", Verdict.OK, kind)


def _writable(db: Path) -> Check:
    folder = db.absolute().parent
    while not folder.exists():
        folder = folder.parent
    good = os.access(folder, os.W_OK)
    remark = "can be written" if good else "cannot be written; choose another --db"
    return Check("storage", Verdict.OK if good else Verdict.FAIL, f"{folder} {remark}")


def _packs() -> Iterator[Check]:
    from attn_tune.runtime.packs import read_pack
    from attn_tune.runtime.sources import locations

    found = locations(os.environ)
    paths = (*found.user, *found.wheels, *found.own)
    if not paths:
        yield Check("packs", Verdict.OK, "none; calls use the kernels' untuned configs")
    for path in paths:
        try:
            pack = read_pack(path, signed=False if path in found.own else None)
        except AttnTuneError as error:
            yield Check("pack", Verdict.FAIL, str(error))
        else:
            yield Check("pack", Verdict.OK, f"{path}: {pack}, {len(pack.rows)} rows")
