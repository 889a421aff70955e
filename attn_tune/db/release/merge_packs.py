"""Merging of several packs into one, under the same policies as imports."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attn_tune.db.release.conflicts import (
    Resolution,
    answers_of,
    conflict_error,
    take_in,
)
from attn_tune.db.release.gate import MAX_REGRET, Doubt
from attn_tune.packs.reader import Pack
from attn_tune.packs.rows import PPM, Row
from attn_tune.packs.writer import check_target, check_word, files_of_rows, write_pack
from attn_tune.schema import UsageError
from attn_tune.schema.decision import Proof


@dataclass(frozen=True, kw_only=True, slots=True)
class MergedPack:
    """The result of merging packs.

    Attributes:
      pack: the new pack, None in a dry run.
      outcomes: the fate of every problem of every pack but the first.
      rows: the rows of the new pack.
      quarantined: the entries of the new pack's quarantine list.
    """

    pack: Pack | None
    outcomes: tuple[Resolution, ...]
    rows: int
    quarantined: int = 0


def merge_packs(
    packs: Sequence[Pack],
    path: Path,
    *,
    name: str,
    version: str,
    policy: str = "error",
    overwrite: bool = False,
    dry_run: bool = False,
) -> MergedPack:
    """Merges ``packs`` into a new one at ``path``: the first is the base, the others come in, in order.

    The manifest names the packs it was made of, counts those of their rows that came in and were let through on purpose
    (at most so many, where a row does not say whether it was one), and says that the gate was passed only if all of
    them say so. It is not signed: a signature vouches for bytes, and these are new. It carries the quarantine lists of
    all; where one names another's row, that row stays and is turned down at lookup, as with the packs side by side.

    Raises:
      UsageError: fewer than two packs, contracts that differ, or conflicts that the policy does not resolve.
      StorageError: as ``export_pack``.
    """
    check_word("name", name)
    check_word("version", version)
    if len(packs) < 2:
        raise UsageError("merging takes two packs or more")
    contracts = _contracts(packs)
    if not dry_run:
        check_target(path, overwrite=overwrite)
    answers = answers_of(packs[0])
    outcomes: list[Resolution] = []
    conflicts: list[Resolution] = []
    for pack in packs[1:]:
        taken, open_ones = take_in(answers, pack, policy)
        outcomes += taken
        conflicts += open_ones
    rows = [row for answer in answers.values() for row in answer.rows]
    entries = {entry.line: entry for pack in packs for entry in pack.quarantine.entries}
    written = None
    if not dry_run:
        if conflicts:
            raise conflict_error("the packs answer", conflicts)
        files = files_of_rows(
            rows,
            name=name,
            version=version,
            devices={k: v for pack in packs for k, v in pack.devices.items()},
            environments={k: v for pack in packs for k, v in pack.environments.items()},
            contracts=contracts,
            gate=_gate(packs, rows),
            quarantine=entries.values(),
        )
        written = write_pack(path, files)
    return MergedPack(pack=written, outcomes=tuple(outcomes), rows=len(rows), quarantined=len(entries))


def _contracts(packs: Sequence[Pack]) -> dict[str, int]:
    found: dict[str, int] = {}
    for pack in packs:
        for kernel, contract in pack.contracts.items():
            if found.setdefault(kernel, contract) != contract:
                raise UsageError(
                    f"{pack} has {kernel} under contract {contract}, an earlier pack under {found[kernel]}; "
                    "rows of two contracts cannot be in one pack"
                )
    return found


def _gate(packs: Sequence[Pack], rows: Sequence[Row]) -> dict[str, Any]:
    accepted: Counter[str] = Counter()
    counted: set[int] = set()
    shipped = {id(row) for row in rows}
    for pack in packs:
        came_in = [row for row in pack.rows if id(row) in shipped - counted]
        counted |= set(map(id, came_in))
        for doubt, count in pack.gate.get("accepted", {}).items():
            accepted[doubt] += min(count, sum(_may_be_doubted(row, doubt) for row in came_in))
    accepted = +accepted
    return {
        **({"accepted": dict(sorted(accepted.items()))} if accepted else {}),
        "passed": all(pack.gate.get("passed") is True for pack in packs),
        "merged": [{"name": p.name, "version": p.version, "digest": p.digest} for p in packs],
    }


def _may_be_doubted(row: Row, doubt: str) -> bool:
    """Whether the gate may have let ``row`` pass despite ``doubt``; a row does not say whether its final was noisy."""
    match doubt:
        case Doubt.UNPROVEN:
            return row.proof is not Proof.PROVEN
        case Doubt.REGRET:
            return (row.regret_ppm or 0) >= MAX_REGRET * PPM
    return True
