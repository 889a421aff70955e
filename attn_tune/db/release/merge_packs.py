"""Merging of several packs into one, under the same policies as imports."""

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attn_tune.db.release.conflicts import (
    Resolution,
    answers_of,
    conflict_error,
    take_in,
)
from attn_tune.db.release.gate import MAX_REGRET, Doubt, forbidding
from attn_tune.packs.manifest import merged_parts
from attn_tune.packs.reader import Pack
from attn_tune.packs.rows import PPM, Row
from attn_tune.packs.writer import check_target, check_word, files_of_rows, write_pack
from attn_tune.runtime.overrides.active import Overrides, files_in_force
from attn_tune.schema import IntegrityError, NoDataError, UsageError
from attn_tune.schema.decision import Proof
from attn_tune.schema.words import config_words

# The facts about a gate that was not passed.
_KEPT = ("passed", "reason", "objections", "reasons")


@dataclass(frozen=True, kw_only=True, slots=True)
class ForbiddenRow:
    """A row that was left out, because a ``never`` entry forbids it.

    Attributes:
      pack: the pack that has it.
      kernel: the kernel, ``op/name``.
      config: the config as text.
      direction: the direction.
      signature: the problem.
      device: the device's name.
      reason: the reason of the entry, and the pack or file that holds it.
    """

    pack: str
    kernel: str
    config: str
    direction: str
    signature: str
    device: str
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class MergedPack:
    """The result of merging packs.

    Attributes:
      pack: the new pack, None in a dry run.
      outcomes: the fate of every problem of every pack but the first.
      rows: the rows of the new pack.
      quarantined: the entries of the new pack's quarantine list.
      left_out: the rows that ``never`` entries forbid.
    """

    pack: Pack | None
    outcomes: tuple[Resolution, ...]
    rows: int
    quarantined: int = 0
    left_out: tuple[ForbiddenRow, ...] = ()


def merge_packs(
    packs: Sequence[Pack],
    path: Path,
    *,
    name: str,
    version: str,
    policy: str = "error",
    overwrite: bool = False,
    dry_run: bool = False,
    in_force: Overrides | None = None,
) -> MergedPack:
    """Merges ``packs`` into a new one at ``path``: the first is the base, the others come in, in order.

    The manifest names the packs it was made of, counts those of their rows that came in and were let through on purpose
    (at most so many, where a row does not say whether it was one), and says that the gate was passed only if all of
    them say so. It is not signed: a signature vouches for bytes, and these are new. It carries the quarantine lists of
    all. Rows that one of these forbids are left out before the policy is asked, so are those that ``in_force`` forbids
    (None are the ``never`` entries of this user's jobs).

    Raises:
      UsageError: fewer than two packs, contracts that differ, or conflicts that the policy does not resolve.
      NoDataError: every row is forbidden.
      IntegrityError, StorageError: as ``export_pack``.
    """
    check_word("name", name)
    check_word("version", version)
    if len(packs) < 2:
        raise UsageError("merging takes two packs or more")
    contracts = _contracts(packs)
    if not dry_run:
        check_target(path, overwrite=overwrite)
    if in_force is None:
        in_force = Overrides(files_in_force(os.environ))
    if in_force.broken:
        raise IntegrityError(f"{in_force.broken}; nothing is merged until then")
    forbidden = Overrides(in_force.files, [pack.quarantine for pack in packs])
    left_out = [list(_forbidden(pack, forbidden)) for pack in packs]
    answers = answers_of(packs[0], [row for row, _ in left_out[0]])
    outcomes: list[Resolution] = []
    conflicts: list[Resolution] = []
    for pack, out in zip(packs[1:], left_out[1:], strict=True):
        taken, open_ones = take_in(answers, pack, policy, [row for row, _ in out])
        outcomes += taken
        conflicts += open_ones
    rows = [row for answer in answers.values() for row in answer.rows]
    if not rows and any(left_out):
        raise NoDataError("never entries forbid every row of the packs; nothing was written")
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
    return MergedPack(
        pack=written,
        outcomes=tuple(outcomes),
        rows=len(rows),
        quarantined=len(entries),
        left_out=tuple(facts for out in left_out for _, facts in out),
    )


def _forbidden(pack: Pack, overrides: Overrides) -> Iterable[tuple[Row, ForbiddenRow]]:
    """The rows of ``pack`` that must not run, each with the facts that name it."""
    for row in pack.rows:
        device = pack.devices[row.device]
        if entry := forbidding(row, device, overrides):
            yield (
                row,
                ForbiddenRow(
                    pack=str(pack),
                    kernel=f"{row.op}/{row.kernel}",
                    config=config_words(row.config),
                    direction=row.direction,
                    signature=row.signature,
                    device=str(device),
                    reason=f"{entry.reason} ({entry.condition}; {entry.origin})",
                ),
            )


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
        "merged": _parts(packs),
    }


def _parts(packs: Sequence[Pack]) -> list[dict[str, Any]]:
    """An entry of the manifest for each of ``packs``: its name, the facts about its gate, and its note.

    Of packs that were merged themselves it also keeps the parts with a note, or with a reason to do without the gate.
    """
    found: dict[str, dict[str, Any]] = {}
    for pack in packs:
        found[pack.digest] = {
            "name": pack.name,
            "version": pack.version,
            "digest": pack.digest,
            "gate": {name: pack.gate[name] for name in _KEPT if name in pack.gate},
            **({"note": pack.note} if pack.note else {}),
        }
    for pack in packs:
        for part in merged_parts(pack.gate):
            if "note" in part or "reason" in part["gate"]:
                found.setdefault(str(part.get("digest")), part)
    return list(found.values())


def _may_be_doubted(row: Row, doubt: str) -> bool:
    """Whether the gate may have let ``row`` pass despite ``doubt``; a row does not say whether its final was noisy."""
    match doubt:
        case Doubt.UNPROVEN:
            return row.proof is not Proof.PROVEN
        case Doubt.REGRET:
            return (row.regret_ppm or 0) >= MAX_REGRET * PPM
    return True
