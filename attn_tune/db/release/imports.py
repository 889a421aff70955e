"""Imports packs into the lab database, beside its own facts: all of a pack or nothing."""

import json
import os
import sqlite3
from collections import Counter, defaultdict
from dataclasses import asdict, dataclass

from attn_tune.db.database import Database
from attn_tune.db.release.conflicts import (
    Fate,
    Key,
    PackAnswer,
    Policy,
    Resolution,
    conflict_error,
)
from attn_tune.db.store.times import now_us, time_text
from attn_tune.packs.reader import Pack, read_pack
from attn_tune.packs.rows import Row
from attn_tune.schema import Environment, canonical_json, config_to_json

_ADD_PACK = """
INSERT OR IGNORE INTO imported_pack (digest, name, version, manifest, imported) VALUES (?, ?, ?, ?, ?)
"""
_FIND_PACK = "SELECT id FROM imported_pack WHERE digest = ?"
_GET_ROWS = """
SELECT imported_row.body, imported_row.pack_id, imported_pack.name, imported_pack.manifest
FROM imported_row JOIN imported_pack ON imported_pack.id = imported_row.pack_id
WHERE imported_row.device_digest = ? AND imported_row.signature = ? AND imported_row.direction = ?
ORDER BY imported_row.rank
"""
_DROP_ROWS = "DELETE FROM imported_row WHERE device_digest = ? AND signature = ? AND direction = ?"
_ADD_ROW = """
INSERT INTO imported_row (device_digest, signature, direction, kernel, pack_id, rank, config, body)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)
"""


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
    ``"fastest-verified"`` the one that is proven and, beyond noise, faster, ``"prefer=NAME"`` that of the pack NAME.
    With ``dry_run`` nothing is stored, and conflicts are outcomes (``"kept"``, with the reason) rather than an error.

    Raises:
      IntegrityError: the pack is not what it claims to be.
      UsageError: there are conflicts that the policy does not resolve, listed in the message.
    """
    rule = Policy.parse(policy)
    pack = read_pack(path)
    problems: dict[Key, list[Row]] = defaultdict(list)
    for row in pack.rows:
        problems[row.device, row.signature, row.direction].append(row)
    with database.transaction() as connection:
        outcomes, conflicts = _resolve(connection, pack, problems, rule)
        if not dry_run:
            if conflicts:
                raise conflict_error(f"pack {pack} answers", conflicts)
            pack_id = _add_pack(connection, pack)
            for key, outcome in outcomes.items():
                if outcome.fate in (Fate.ADDED, Fate.REPLACED):
                    connection.execute(_DROP_ROWS, key)
                    for row in problems[key]:
                        _add_row(connection, pack_id, row)
    counts = Counter(outcome.fate for outcome in outcomes.values())
    return ImportSummary(
        name=pack.name,
        version=pack.version,
        digest=pack.digest,
        outcomes=tuple(outcomes.values()),
        quarantined=len(pack.quarantine.entries),
        dry_run=dry_run,
        **{str(fate): counts[fate] for fate in Fate},
    )


def _resolve(
    connection: sqlite3.Connection, pack: Pack, problems: dict[Key, list[Row]], policy: Policy
) -> tuple[dict[Key, Resolution], list[Resolution]]:
    """The fate of each problem, and the problems that the policy does not resolve."""
    outcomes: dict[Key, Resolution] = {}
    conflicts: list[Resolution] = []
    manifests: dict[int, dict[str, Environment]] = {}
    for key, rows in problems.items():
        stored = _stored(connection, key, manifests)
        incoming = PackAnswer(pack=pack.name, rows=rows, environments=pack.environments)
        fate, reason = policy.resolve(stored, incoming)
        outcomes[key] = Resolution.of(key, pack.devices[key[0]], stored, incoming, fate, reason)
        if fate is None:
            conflicts.append(outcomes[key])
    return outcomes, conflicts


def _stored(
    connection: sqlite3.Connection, key: Key, manifests: dict[int, dict[str, Environment]]
) -> PackAnswer | None:
    found = connection.execute(_GET_ROWS, key).fetchall()
    if not found:
        return None
    environments: dict[str, Environment] = {}
    for item in found:
        if item["pack_id"] not in manifests:
            tables = json.loads(item["manifest"])["environments"]
            manifests[item["pack_id"]] = {d: Environment(**e) for d, e in tables.items()}
        environments |= manifests[item["pack_id"]]
    rows = [Row(**json.loads(item["body"])) for item in found]
    return PackAnswer(pack=found[0]["name"], rows=rows, environments=environments)


def _add_pack(connection: sqlite3.Connection, pack: Pack) -> int:
    manifest = {
        "devices": {digest: d.identity for digest, d in pack.devices.items()},
        "environments": {digest: asdict(e) for digest, e in pack.environments.items()},
        "kernels": dict(pack.contracts),
        "tool": pack.tool,
        "decision_digest": pack.decision_digest,
    }
    if pack.quarantine.entries:
        manifest["quarantine"] = [json.loads(entry.line) for entry in pack.quarantine.entries]
    text = json.dumps(manifest, sort_keys=True)
    values = (pack.digest, pack.name, pack.version, text, time_text(now_us()))
    connection.execute(_ADD_PACK, values)
    return connection.execute(_FIND_PACK, (pack.digest,)).fetchone()[0]


def _add_row(connection: sqlite3.Connection, pack_id: int, row: Row) -> None:
    values = (
        *row.key,
        pack_id,
        row.rank,
        config_to_json(row.config),
        canonical_json(asdict(row)),
    )
    connection.execute(_ADD_ROW, values)
