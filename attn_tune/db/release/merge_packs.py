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
from attn_tune.packs.reader import Pack
from attn_tune.packs.writer import check_target, check_word, files_of_rows, write_pack
from attn_tune.schema import UsageError


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

    The manifest names the packs it was made of, adds up how many of their rows were let through on purpose, and says
    that the gate was passed only if all of them say so. It is not signed: a signature vouches for bytes, and these are
    new. It carries the quarantine lists of all; where one names another's row, that row stays and is turned down at
    lookup, as with the packs side by side.

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
            gate=_gate(packs, len(rows)),
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


def _gate(packs: Sequence[Pack], rows: int) -> dict[str, Any]:
    # Of rows that did not come in too: a pack may say of itself that it is worse, not that it is better.
    accepted: Counter[str] = Counter()
    for pack in packs:
        accepted.update(pack.gate.get("accepted", {}))
    return {
        **({"accepted": {doubt: min(count, rows) for doubt, count in sorted(accepted.items())}} if accepted else {}),
        "passed": all(pack.gate.get("passed") is True for pack in packs),
        "merged": [{"name": p.name, "version": p.version, "digest": p.digest} for p in packs],
    }
