"""Exports config packs: an immutable, verified set of decisions that passed the release gate.

Layout and reader: ``attn_tune.packs.reader``. Same trials and options, same bytes.
"""

import dataclasses
import functools
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attn_tune.db.database import Database
from attn_tune.db.decide.decisions import find_outvoted
from attn_tune.db.decide.recorded import RecordedTrial
from attn_tune.db.decide.selection import Selection, ranked, select
from attn_tune.db.release.evidence import Evidence
from attn_tune.db.release.gate import (
    GatePolicy,
    Objection,
    add_guards,
    check_quarantine,
    check_rows,
    needs_leave,
)
from attn_tune.packs.override_entries import Entry
from attn_tune.packs.override_files import OverridesFile
from attn_tune.packs.writer import (
    check_note,
    check_target,
    check_word,
    pack_files,
    write_pack,
)
from attn_tune.runtime.overrides.active import Overrides, files_in_force
from attn_tune.schema import Decision, GateError, IntegrityError, NoDataError, Rule, Status, UsageError
from attn_tune.schema.words import counted

SHOWN = 20
EVERYTHING = Selection()
STRICT = GatePolicy()

# For each decision, in order: "" if it was validated again and is right, else what is wrong; None if it was not tried.
type Revalidate = Callable[[Sequence[Decision]], Sequence[str | None]]


@dataclass(frozen=True, kw_only=True, slots=True)
class PackSummary:
    """The pack that was written.

    Attributes:
      path: the file or folder.
      name: the pack's name.
      version: the pack's version.
      rows: the number of rows.
      problems: the number of (device, signature, direction).
      devices: the names of the devices.
      digest: the digest of all contents.
      decision_digest: the digest of the decisions alone.
      size_bytes: the size of the files.
      gate: the manifest's entry about the gate.
      left_out: kernels whose decisions were not shipped because they are not deterministic.
      quarantined: the number of entries of its quarantine list.
    """

    path: Path
    name: str
    version: str
    rows: int
    problems: int
    devices: tuple[str, ...]
    digest: str
    decision_digest: str
    size_bytes: int
    gate: Mapping[str, Any]
    left_out: tuple[str, ...] = ()
    quarantined: int = 0


def export_pack(
    database: Database,
    path: str | os.PathLike[str],
    *,
    name: str,
    version: str,
    selection: Selection = EVERYTHING,
    revalidate: Revalidate | None = None,
    ungated: str | None = None,
    policy: GatePolicy = STRICT,
    allow_predicted: bool = False,
    allow_nondeterministic: bool = False,
    quarantine: Sequence[Entry] = (),
    in_force: Overrides | None = None,
    note: str | None = None,
    overwrite: bool = False,
) -> PackSummary:
    """Decides from the trials as they are now, holds the rows against the release gate, and writes a pack.

    It is one file when ``path`` ends in ``.atpack``, else a folder. Rows of an op's older contract are left out. The
    pack is read back and verified before it appears at ``path``.

    Args:
      revalidate: runs the configs again where there is a device for them.
      ungated: the reason to ship without the gate; the manifest keeps it.
      policy: the doubts that the gate lets pass on purpose; the manifest counts them.
      allow_predicted: also ships predictions for problems on devices where nothing was measured. Such rows have the
        state ``predicted``; the gate has nothing to hold them against, and the manifest counts them.
      allow_nondeterministic: also ships decisions for kernels that need leave (``KernelSpec.needs_leave``), and for
        configs whose bits were seen to differ from run to run; the manifest counts them. Without it the best of the
        other kernels is the pack's winner.
      quarantine: the list that the pack carries, for the jobs that use the pack.
      in_force: the ``never`` entries that hold now; None are those of this user's jobs. No row that matches it or
        ``quarantine`` is shipped, with the gate or without.
      note: a line for people, which the manifest keeps.

    Raises:
      NoDataError: nothing fits.
      GateError: a row lacks proof, or is in quarantine; the message lists the rows and reasons, ``objections`` has all.
      IntegrityError, StorageError: overrides of this user's jobs cannot be read.
      UsageError: a name, version or note that a pack cannot have, or an empty reason.
      StorageError: ``path`` is taken (``overwrite`` replaces a pack, and only a pack), or cannot be written.
    """
    path = Path(path)
    check_word("name", name)
    check_word("version", version)
    if ungated is not None and not ungated.strip():
        raise UsageError("shipping without the gate needs a reason")
    note = "" if note is None else check_note(note)
    check_target(path, overwrite=overwrite)
    everything = list(database.decide())
    if allow_predicted:
        everything += database.decide_predicted()
    left_out = [] if allow_nondeterministic else [d for d in everything if needs_leave(d)]
    if left_out:
        everything = [d for d in everything if not needs_leave(d)]
    chosen = select(everything, selection)
    if not chosen and select(left_out, selection):
        names = ", ".join(sorted({d.kernel for d in left_out if selection.wants(d)}))
        raise NoDataError(
            f"all that {database.path} has for {selection} is of kernels that are not deterministic ({names}); "
            "ship them with --allow-nondeterministic, or ask for others too"
        )
    if not chosen:
        imported = 0 if everything or left_out else len(database.frame("imported"))
        if imported:
            raise NoDataError(
                f"{database.path} has {counted(imported, 'row')} of imported packs and no trials of its own, and only "
                "what was measured there is exported: sweep first, or bring packs together with 'attn-tune pack merge'"
            )
        raise NoDataError(f"{database.path} has {_failures(database, selection)}")
    if in_force is None:
        in_force = Overrides(files_in_force(os.environ))
    if in_force.broken:
        raise IntegrityError(f"{in_force.broken}; nothing is exported until then")
    forbidden = Overrides([OverridesFile(entries=tuple(quarantine)), *in_force.files])
    _refuse_quarantined(chosen, forbidden)
    chosen, gate = _gated(database, everything, chosen, selection, revalidate, ungated, policy)
    if count := sum(map(needs_leave, chosen)):
        gate["nondeterministic"] = count
    # The gate may have added rows with untuned configs.
    _refuse_quarantined(chosen, forbidden)
    files = pack_files(chosen, name=name, version=version, gate=gate, quarantine=quarantine, note=note)
    pack = write_pack(path, files)
    return PackSummary(
        path=path,
        name=name,
        version=version,
        rows=len(pack.rows),
        problems=len({row.key[:3] for row in pack.rows}),
        devices=tuple(sorted(str(d) for d in pack.devices.values())),
        digest=pack.digest,
        decision_digest=pack.decision_digest,
        size_bytes=sum(map(len, files.values())),
        gate=gate,
        left_out=tuple(sorted({d.kernel for d in left_out if selection.wants(d)})),
        quarantined=len(pack.quarantine.entries),
    )


def objections_to(database: Database, decisions: Sequence[Decision]) -> list[Objection]:
    """The objections of ``export_pack`` to shipping ``decisions`` of ``database``, by its usual policy."""
    shipped = [d for d in decisions if not needs_leave(d)] or decisions
    found = check_rows(shipped, _evidence_of(database))
    forbidden = check_quarantine(shipped, Overrides(files_in_force(os.environ)))
    return [*forbidden, *(one for one in found if not STRICT.passes(one))]


def _failures(database: Database, selection: Selection) -> str:
    """The reason that nothing is chosen, as the rest of a sentence."""
    asked = [one for one in database.recorded() if selection.covers(one.trial)]
    if selection.signatures is not None:
        asked = [one for one in asked if one.trial.signature.text in selection.signatures]
    by_case: dict[tuple[str, str, str, str], list[RecordedTrial]] = defaultdict(list)
    for one in asked:
        t = one.trial
        by_case[t.kernel, t.direction, t.signature.text, t.device.digest].append(one)
    if outvoted := sorted({key[0] for key, found in by_case.items() if find_outvoted(found)}):
        return (
            f"no decision for {selection}: {', '.join(outvoted)} was right with an older source alone, and what was "
            "tried with a newer one is not; mend it, or go back and sweep again with --no-resume"
        )
    tried = [one.trial for one in asked if one.trial.status.was_tried]
    if not tried and any(one.trial.status is Status.PREDICTED for one in asked):
        return f"only predictions for {selection}; --allow-predicted ships them"
    if not tried or any(t.status.is_measured for t in tried):
        return f"no decision for {selection}; sweep first, or ask for less"
    counts = ", ".join(f"{count} {status}" for status, count in Counter(t.status for t in tried).most_common())
    return (
        f"no right config for {selection}: all of {counted(len(tried), 'trial')} failed ({counts}); "
        f"'attn-tune report --section failures --db {database.path}' lists the reasons"
    )


def _refuse_quarantined(chosen: Sequence[Decision], forbidden: Overrides) -> None:
    if objections := check_quarantine(chosen, forbidden):
        way_out = "select other rows, or take the entry out with 'attn-tune override remove'"
        raise _error(objections, len(chosen), way_out)


def _gated(
    database: Database,
    everything: Sequence[Decision],
    chosen: list[Decision],
    selection: Selection,
    revalidate: Revalidate | None,
    ungated: str | None,
    policy: GatePolicy,
) -> tuple[list[Decision], dict[str, Any]]:
    """The rows to ship, and the manifest's entry about the gate."""
    evidence = _evidence_of(database)
    chosen = [_name_untuned(d, evidence(d)) for d in chosen]
    # Here only if the caller allowed them, and of devices where nothing was measured.
    predicted = sum(d.rule is Rule.PREDICTED for d in chosen)
    measured = [d for d in chosen if d.rule is not Rule.PREDICTED]
    found = check_rows(measured, evidence, policy.max_regret)
    objections = [one for one in found if not policy.passes(one)]
    passed = Counter(str(one.doubt) for one in found if policy.passes(one))
    accepted = {"accepted": dict(sorted(passed.items()))} if passed else {}
    revalidated = 0
    if revalidate is not None:
        for decision, wrong in zip(chosen, revalidate(chosen), strict=True):
            revalidated += wrong is not None
            if wrong:
                reason = f"validated again, it failed: {wrong}"
                objections.append(Objection(decision=decision, reason=reason))
    if ungated is not None:
        facts = {
            "passed": False,
            "reason": ungated.strip(),
            "objections": len(objections),
            "reasons": sorted({one.reason for one in objections})[:SHOWN],
        }
        counts = {"rows": len(chosen), "predicted": predicted, "revalidated": revalidated}
        return chosen, facts | counts | accepted
    if objections:
        raise _error(objections, len(chosen))
    guards = _guards(everything, chosen, selection)
    added, guarded = add_guards(chosen, guards, evidence)
    found = check_rows(added, evidence, policy.max_regret)
    if objections := [one for one in found if not policy.passes(one)]:
        raise _error(objections, len(added))
    # What was asked for stays in front of what only guards.
    rows = ranked([*chosen, *added])
    counts = {"rows": len(rows), "predicted": predicted, "revalidated": revalidated}
    return rows, {"passed": True, **counts, "guards": guarded, **accepted}


def _evidence_of(database: Database) -> Callable[[Decision], Evidence]:
    @functools.lru_cache(maxsize=64)
    def read(signature: str, direction: str, device: str) -> Evidence:
        return Evidence(database.trials(signature=signature, direction=direction, device=device))

    return lambda d: read(d.signature.text, d.direction, d.device.digest)


def _name_untuned(decision: Decision, evidence: Evidence) -> Decision:
    """Marks an untuned config that stays because nothing beats it."""
    record = evidence.of(decision)
    if decision.rule is Rule.TIE and record is not None and record.is_heuristic:
        return dataclasses.replace(decision, rule=Rule.HEURISTIC)
    return decision


def _guards(everything: Sequence[Decision], chosen: Sequence[Decision], selection: Selection) -> list[Decision]:
    """Measured problems of the pack's kernels and contracts that it does not answer itself."""
    shipped = {(d.device.digest, d.signature.text, d.direction, d.kernel) for d in chosen}
    kernels = {(d.kernel, d.contract) for d in chosen}
    return [
        d
        for d in everything
        if selection.covers(d)
        and (d.kernel, d.contract) in kernels
        and (d.device.digest, d.signature.text, d.direction, d.kernel) not in shipped
    ]


def _error(
    objections: Sequence[Objection],
    rows: int,
    way_out: str = "sweep these again, with --no-resume where they have a final, select fewer rows, or ship them with "
    "--no-gate REASON",
) -> GateError:
    """An error of one sentence with the way out, and a list of the rows under it, by cause where there are several."""
    causes: dict[str, list[str]] = {}
    for one in objections:
        causes.setdefault(one.reason, [])
    for one in objections[:SHOWN]:
        causes[one.reason].append(one.row)
    refused = f"{len({id(o.decision) for o in objections})} of {counted(rows, 'row')}"
    why = f": {next(iter(causes))}" if len(causes) == 1 else ""
    lines = [f"{refused} may not be shipped{why}; nothing was written: {way_out}"]
    for reason, listed in causes.items():
        if len(causes) > 1 and listed:
            lines.append(f"  {reason}")
        lines += [f"{'  ' if why else '    '}{row}" for row in listed]
    if len(objections) > SHOWN:
        lines.append(f"  and {len(objections) - SHOWN} more")
    error = GateError("\n".join(lines))
    error.objections = [one.facts for one in objections]
    return error
