"""Takes packs into the lab database, beside its own facts: all of a pack or nothing."""

import json
import os
import sqlite3
from collections import Counter, defaultdict
from dataclasses import asdict, dataclass

from attn_tune.db import queries
from attn_tune.db.conflicts import Answer, Fate, Key, Outcome, Policy, conflict_error
from attn_tune.db.database import Database
from attn_tune.db.writer import now_us
from attn_tune.packs.reader import Pack, read_pack
from attn_tune.packs.rows import Row
from attn_tune.schema import Environment, canonical_json, config_to_json


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportSummary:
    """What became of the pack's problems, (device, signature, direction) each; ``outcomes`` says it of every one.

    ``quarantined`` counts the entries of the pack's quarantine list, which is kept with it.
    """

    name: str
    version: str
    digest: str
    added: int
    unchanged: int
    kept: int
    replaced: int
    outcomes: tuple[Outcome, ...] = ()
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
                    connection.execute(queries.DROP_IMPORTED, key)
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
) -> tuple[dict[Key, Outcome], list[Outcome]]:
    """What becomes of each problem, and those that the policy does not resolve."""
    outcomes: dict[Key, Outcome] = {}
    conflicts: list[Outcome] = []
    manifests: dict[int, dict[str, Environment]] = {}
    for key, rows in problems.items():
        stored = _stored(connection, key, manifests)
        incoming = Answer(pack=pack.name, rows=rows, environments=pack.environments)
        fate, reason = policy.resolve(stored, incoming)
        outcomes[key] = Outcome.of(key, pack.devices[key[0]], stored, incoming, fate, reason)
        if fate is None:
            conflicts.append(outcomes[key])
    return outcomes, conflicts


def _stored(
    connection: sqlite3.Connection, key: Key, manifests: dict[int, dict[str, Environment]]
) -> Answer | None:
    found = connection.execute(queries.GET_IMPORTED, key).fetchall()
    if not found:
        return None
    environments: dict[str, Environment] = {}
    for item in found:
        if item["pack_id"] not in manifests:
            tables = json.loads(item["manifest"])["environments"]
            manifests[item["pack_id"]] = {d: Environment(**e) for d, e in tables.items()}
        environments |= manifests[item["pack_id"]]
    rows = [Row(**json.loads(item["body"])) for item in found]
    return Answer(pack=found[0]["name"], rows=rows, environments=environments)


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
    values = (pack.digest, pack.name, pack.version, json.dumps(manifest, sort_keys=True), now_us())
    connection.execute(queries.ADD_PACK, values)
    return connection.execute(queries.FIND_PACK, (pack.digest,)).fetchone()[0]


def _add_row(connection: sqlite3.Connection, pack_id: int, row: Row) -> None:
    values = (
        *row.key,
        pack_id,
        row.rank,
        config_to_json(row.config),
        canonical_json(asdict(row)),
    )
    connection.execute(queries.ADD_IMPORTED, values)
