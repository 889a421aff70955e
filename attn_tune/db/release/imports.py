"""Imports packs into the lab database, beside its own facts: all of a pack or nothing."""

import functools
import json
import os
import sqlite3
from collections import Counter
from dataclasses import asdict, dataclass

from attn_tune.db.database import Database
from attn_tune.db.release.conflicts import (
    Fate,
    Key,
    PackAnswer,
    Resolution,
    conflict_error,
    take_in,
)
from attn_tune.db.store.rows import NO_ROW, RowError, json_object
from attn_tune.db.store.sql import insert
from attn_tune.db.store.times import now_us, time_text
from attn_tune.packs.reader import Pack, read_pack
from attn_tune.packs.rows import Row, parse_row
from attn_tune.schema import Environment, canonical_json, config_to_json

_FIND_PACK = "SELECT id FROM imported_pack WHERE digest = ?"
_GET_ROWS = """
SELECT body, name, manifest, pack_id, device_digest, signature, direction, kernel
FROM imported_row JOIN imported_pack ON imported_pack.id = imported_row.pack_id ORDER BY imported_row.rank
"""
_DROP_ROWS = "DELETE FROM imported_row WHERE device_digest = ? AND signature = ? AND direction = ?"


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportSummary:
    """The result of an import. A problem is a (device, signature, direction).

    Attributes:
      name: the pack's name.
      version: the pack's version.
      digest: the pack's digest.
      added: problems that nothing answered before.
      unchanged: problems with the same answer.
      kept: problems whose stored answer stays.
      replaced: problems whose answer is replaced.
      outcomes: the fate of every problem.
      quarantined: entries of the pack's quarantine list, which is kept with it.
      dry_run: whether nothing was stored.
    """

    name: str
    version: str
    digest: str
    added: int
    unchanged: int
    kept: int
    replaced: int
    outcomes: tuple[Resolution, ...] = ()
    quarantined: int = 0
    dry_run: bool = False


def import_pack(
    database: Database,
    path: str | os.PathLike[str],
    *,
    policy: str = "error",
    dry_run: bool = False,
) -> ImportSummary:
    """Verifies the pack at ``path`` and stores its rows; doing it again changes nothing.

    A conflict is a problem that an earlier import answers otherwise; evidence may differ. ``policy`` says what then:
    ``"error"`` stores nothing, ``"keep"`` stays with the earlier answer, ``"replace"`` takes the new one,
    ``"fastest-verified"`` the one that is proven and, beyond noise, faster (of about equal times the earlier one),
    ``"prefer=NAME"`` that of the pack NAME.
    With ``dry_run`` nothing is stored, and conflicts are outcomes (``"kept"``, with the reason) rather than an error.

    Raises:
      IntegrityError: the pack is not what it claims to be.
      UsageError: there are conflicts that the policy does not resolve, listed in the message.
    """
    pack = read_pack(path)
    with database.transaction() as connection:
        stored = _stored(connection)
        answers = dict(stored)
        outcomes, conflicts = take_in(answers, pack, policy)
        if not dry_run:
            if conflicts:
                raise conflict_error(f"pack {pack} answers", conflicts)
            pack_id = _add_pack(connection, pack)
            for key, answer in answers.items():
                if answer is not stored.get(key):
                    connection.execute(_DROP_ROWS, key)
                    for row in answer.rows:
                        insert(connection, "imported_row", _columns(pack_id, row))
    counts = Counter(outcome.fate for outcome in outcomes)
    return ImportSummary(
        name=pack.name,
        version=pack.version,
        digest=pack.digest,
        outcomes=tuple(outcomes),
        quarantined=len(pack.quarantine.entries),
        dry_run=dry_run,
        **{str(fate): counts[fate] for fate in Fate},
    )


def _stored(connection: sqlite3.Connection) -> dict[Key, PackAnswer]:
    """The answers of the packs that were imported."""

    @functools.cache
    def environments(manifest: str) -> dict[str, Environment]:
        tables = json_object(manifest)["environments"]
        return {digest: Environment(**table) for digest, table in tables.items()}

    found: dict[Key, PackAnswer] = {}
    for body, name, manifest, pack_id, *stored_key in connection.execute(_GET_ROWS):
        try:
            data = json_object(body)
            row = parse_row(data, op=data["op"], direction=data["direction"])
        except NO_ROW as error:
            raise RowError("imported_row", f"({', '.join(stored_key)})", error) from error
        key = (row.device, row.signature, row.direction)
        before = found[key].rows if key in found else ()
        try:
            found[key] = PackAnswer(name, [*before, row], environments(manifest))
        except NO_ROW as error:
            raise RowError("imported_pack", pack_id, error) from error
    return found


def _add_pack(connection: sqlite3.Connection, pack: Pack) -> int:
    """The id of the row of ``pack``, which is there from now on."""
    manifest = {
        "devices": {digest: d.identity for digest, d in pack.devices.items()},
        "environments": {digest: asdict(e) for digest, e in pack.environments.items()},
        "kernels": dict(pack.contracts),
        "tool": pack.tool,
        "decision_digest": pack.decision_digest,
    }
    if pack.quarantine.entries:
        manifest["quarantine"] = [json.loads(entry.line) for entry in pack.quarantine.entries]
    values = {
        "digest": pack.digest,
        "name": pack.name,
        "version": pack.version,
        "manifest": json.dumps(manifest, sort_keys=True),
        "imported": time_text(now_us()),
    }
    insert(connection, "imported_pack", values, new_only=True)
    return connection.execute(_FIND_PACK, (pack.digest,)).fetchone()[0]


def _columns(pack_id: int, row: Row) -> dict[str, str | int]:
    return {
        "device_digest": row.device,
        "signature": row.signature,
        "direction": row.direction,
        "kernel": row.kernel,
        "pack_id": pack_id,
        "rank": row.rank,
        "config": config_to_json(row.config),
        "body": canonical_json(asdict(row)),
    }
