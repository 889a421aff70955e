"""Takes packs into the lab database, beside its own facts: all of a pack or nothing."""

import json
import os
import sqlite3
from collections import defaultdict
from dataclasses import asdict, dataclass
from typing import Literal

from attn_tune.db import queries
from attn_tune.db.database import Database
from attn_tune.db.writer import now_us
from attn_tune.runtime.packs import Pack, read_pack
from attn_tune.runtime.rows import Row
from attn_tune.schema import UsageError, canonical_json, config_to_json

type Policy = Literal["error", "keep", "replace"]
POLICIES = ("error", "keep", "replace")
SHOWN = 20

# One problem: (device digest, signature, direction). Its rows stand or fall together: their ranks count as one answer.
type _Key = tuple[str, str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportSummary:
    """What became of the pack's problems, (device, signature, direction) each."""

    name: str
    version: str
    digest: str
    added: int
    unchanged: int
    kept: int
    replaced: int


def import_pack(
    database: Database, path: str | os.PathLike[str], *, policy: Policy = "error"
) -> ImportSummary:
    """Verifies the pack at ``path`` and stores its rows; doing it again changes nothing.

    A conflict is a problem that an earlier import answers otherwise; evidence may differ. ``policy`` says what then:
    ``"error"`` stores nothing, ``"keep"`` stays with the earlier answer, ``"replace"`` takes the new one.

    Raises:
      IntegrityError: the pack is not what it claims to be.
      UsageError: there are conflicts under ``"error"``, listed in the message.
    """
    if policy not in POLICIES:
        raise UsageError(f"policy must be one of {', '.join(POLICIES)}, got {policy!r}")
    pack = read_pack(path)
    problems: dict[_Key, list[Row]] = defaultdict(list)
    for row in pack.rows:
        problems[row.device, row.signature, row.direction].append(row)
    with database.transaction() as connection:
        stored = {key: _stored(connection, key) for key in problems}
        added = [key for key in problems if not stored[key]]
        conflicts = [
            key for key in problems if stored[key] and stored[key] != _answer(problems[key])
        ]
        if conflicts and policy == "error":
            raise UsageError(_table(pack, conflicts, stored, problems))
        pack_id = _add_pack(connection, pack)
        for key in added + (conflicts if policy == "replace" else []):
            connection.execute(queries.DROP_IMPORTED, key)
            for row in problems[key]:
                _add_row(connection, pack_id, row)
    return ImportSummary(
        name=pack.name,
        version=pack.version,
        digest=pack.digest,
        added=len(added),
        unchanged=len(problems) - len(added) - len(conflicts),
        kept=len(conflicts) if policy == "keep" else 0,
        replaced=len(conflicts) if policy == "replace" else 0,
    )


def _answer(rows: list[Row]) -> dict[str, tuple[int, str]]:
    """By kernel, what the rows decide: rank and config."""
    return {row.kernel: (row.rank, config_to_json(row.config)) for row in rows}


def _stored(connection: sqlite3.Connection, key: _Key) -> dict[str, tuple[int, str]]:
    rows = connection.execute(queries.GET_IMPORTED, key)
    return {row["kernel"]: (row["rank"], row["config"]) for row in rows}


def _add_pack(connection: sqlite3.Connection, pack: Pack) -> int:
    manifest = {
        "devices": {digest: d.identity for digest, d in pack.devices.items()},
        "environments": {digest: asdict(e) for digest, e in pack.environments.items()},
        "kernels": dict(pack.contracts),
        "tool": pack.tool,
        "decision_digest": pack.decision_digest,
    }
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


def _table(
    pack: Pack,
    conflicts: list[_Key],
    stored: dict[_Key, dict[str, tuple[int, str]]],
    problems: dict[_Key, list[Row]],
) -> str:
    lines = [
        f"pack {pack} answers {len(conflicts)} problems otherwise than earlier imports; nothing was imported. "
        "Import with policy 'keep' or 'replace':"
    ]
    for key in conflicts[:SHOWN]:
        device, signature, direction = key
        lines.append(f"  {signature} {direction} on {pack.devices[device]}")
        lines.append(f"    stored: {_winner(stored[key])}")
        lines.append(f"    pack:   {_winner(_answer(problems[key]))}")
    if len(conflicts) > SHOWN:
        lines.append(f"  and {len(conflicts) - SHOWN} more")
    return "\n".join(lines)


def _winner(answer: dict[str, tuple[int, str]]) -> str:
    ranked = sorted((rank, kernel, config) for kernel, (rank, config) in answer.items())
    return ", ".join(f"{kernel} {config}" for _, kernel, config in ranked)
