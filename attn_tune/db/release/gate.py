"""The release gate: the proof that every row needs before it is shipped, read from the stored trials.

Of each row: its config ran, every output that its op declares was compared with the reference, it passed feature
problems, it had a final on a quiet device that left little doubt, the environment is known, nothing about it
failed since, and it does not lose to the untuned config. Where its kernel is installed here, that has the source that
was measured, and takes the config. Then the guards: every measured problem that the pack does
not answer itself is asked of the pack as a job would ask; where the row that answers is known to lose there, or to
fail, the pack gets a row that says so.
"""

import dataclasses
import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attn_tune.db.decide.selection import ranked
from attn_tune.db.release.evidence import Evidence, Record
from attn_tune.kernels import registry
from attn_tune.kernels.staleness import is_stale
from attn_tune.packs.override_entries import Asked, Entry
from attn_tune.packs.reader import Pack, pack_from_files
from attn_tune.packs.rows import Row
from attn_tune.packs.writer import pack_files
from attn_tune.runtime.active.row_index import RowIndex
from attn_tune.runtime.lookup.answer import SourceKind
from attn_tune.runtime.lookup.ladder import Match, RowQuestion, walk
from attn_tune.runtime.lookup.question import adapted
from attn_tune.runtime.overrides.active import Overrides
from attn_tune.schema import Decision, Device, Environment, Grade, Rule, UsageError, config_from_dict
from attn_tune.schema.decision import Proof
from attn_tune.schema.environment import UNKNOWN

# How much a shipped row may lose to the untuned config: below it, times of different moments cannot tell.
MARGIN = 0.02

# The largest bound on a row's regret, as a share of its time, that is not in doubt.
MAX_REGRET = 0.10

type EvidenceOf = Callable[[Decision], Evidence]


class Doubt(enum.StrEnum):
    """A kind of objection that does not say that a row is wrong; a release may let it pass on purpose."""

    UNPROVEN = "unproven"
    """Its config ran no feature problem."""
    NOISY = "noisy"
    """Its last final was disturbed."""
    REGRET = "regret"
    """Its time may be further from the best than ``MAX_REGRET``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Objection:
    """The reason why one row may not be shipped.

    Attributes:
      decision: the row.
      reason: the reason as a clause.
      doubt: the kind of doubt, None if no policy lets the row pass.
    """

    decision: Decision
    reason: str
    doubt: Doubt | None = None

    @property
    def facts(self) -> dict[str, str | None]:
        """The objection as plain data."""
        d = self.decision
        return {
            "kernel": d.kernel,
            "direction": d.direction,
            "signature": d.signature.text,
            "device": str(d.device),
            "reason": self.reason,
            "doubt": self.doubt and str(self.doubt),
        }

    @property
    def row(self) -> str:
        """The row in words."""
        d = self.decision
        return f"{d.kernel} {d.direction} {d.signature} on {d.device}"

    def __str__(self) -> str:
        return f"{self.row}: {self.reason}"


@dataclass(frozen=True, kw_only=True, slots=True)
class GatePolicy:
    """The doubts that a release lets pass.

    Attributes:
      max_regret: the largest bound on regret, as a share of the row's time.
      allow_unproven: whether rows without a feature problem pass.
      allow_noisy: whether rows whose last final was disturbed pass.
    """

    max_regret: float = MAX_REGRET
    allow_unproven: bool = False
    allow_noisy: bool = False

    def passes(self, objection: Objection) -> bool:
        """Whether a row may be shipped despite ``objection``."""
        match objection.doubt:
            case Doubt.UNPROVEN:
                return self.allow_unproven
            case Doubt.NOISY:
                return self.allow_noisy
            case Doubt.REGRET:
                return (objection.decision.regret_bound or 0.0) <= self.max_regret
        return False


def check_rows(decisions: Iterable[Decision], evidence: EvidenceOf, max_regret: float = MAX_REGRET) -> list[Objection]:
    """The objections to shipping ``decisions``, one for each reason, doubts among them."""
    found = []
    for d in decisions:
        seen = evidence(d)
        found += [Objection(decision=d, reason=reason) for reason in _reasons(d, seen)]
        found += [
            Objection(decision=d, reason=reason, doubt=doubt)
            for doubt, reason in _doubts(d, seen, min(max_regret, MAX_REGRET))
        ]
    return found


def check_quarantine(decisions: Iterable[Decision], overrides: Overrides) -> list[Objection]:
    """Those of ``decisions`` that must not run, with the entry that says so."""
    found = []
    for d in decisions:
        entry = forbidding(Row.of(d), d.device, overrides)
        if entry is not None:
            reason = f"its config is in quarantine: {entry.reason} ({entry.condition}; {entry.origin})"
            found.append(Objection(decision=d, reason=reason))
    return found


def forbidding(row: Row, device: Device, overrides: Overrides) -> Entry | None:
    """The ``never`` entry that forbids ``row``, None if none does."""
    op = _op(row.op)
    defaults = {field.name: field.default for field in op.fields} if op else {}
    # These entries compare values by their text too, so that a signature of an op that is not known here needs no
    # fields to be parsed with.
    stated = dict(word.split("=", 1) for word in row.signature.split() if "=" in word)
    asked = Asked(row.op, row.direction, device, row.signature, defaults | stated)
    return overrides.forbidding(asked, row.kernel, row.config)


def _reasons(d: Decision, evidence: Evidence) -> Iterable[str]:
    record = evidence.of(d)
    if record is None or record.median_ns is None:
        yield "its config was never measured in the environment it is decided for"
        return
    if record.failure:
        yield f"its config failed: {record.failure}"
    if failure := evidence.failed_part(d):
        yield f"a part of its config failed: {failure}"
    if missing := sorted(_needed(d) - evidence.proven_outputs(d)):
        yield f"{', '.join(missing)} never compared with the reference"
    if not record.finals:
        yield "it has no final: its case is not finished (attn-tune sweep goes on with it)"
    if unknown := _unknown(d):
        yield f"its environment does not say {', '.join(unknown)}"
    if d.environment.source_hash != UNKNOWN and is_stale(d.kernel, d.environment):
        yield "it was measured with another source of its kernel than is installed here"
    if unknown := _unknown_knobs(d):
        yield f"the kernel that is installed here does not take its config: {unknown}"
    if d.median_ns and d.heuristic_ns and d.median_ns > d.heuristic_ns * (1 + MARGIN):
        yield f"it takes {d.median_ns / d.heuristic_ns:.3f} of the untuned config's time"


def _doubts(d: Decision, evidence: Evidence, max_regret: float) -> Iterable[tuple[Doubt, str]]:
    record = evidence.of(d)
    # Feature problems run before a final. Where that is missing ``_reasons`` says so, and the same sweep mends both.
    lacks_final = record is not None and record.median_ns is not None and not record.finals
    if d.proof is not Proof.PROVEN and not lacks_final:
        yield Doubt.UNPROVEN, "its config ran no feature problem (--allow-unproven ships it)"
    if d.regret_bound is not None and d.regret_bound > max_regret:
        yield (
            Doubt.REGRET,
            f"its time may be {d.regret_bound:.1%} above the best, the limit is {100 * max_regret:.4g}% (--max-regret)",
        )
    if record is not None and record.conditions is not None and record.conditions.disturbances:
        what = ", ".join(record.conditions.disturbances)
        yield Doubt.NOISY, f"its last final was disturbed: {what} (--allow-noisy ships it)"


def _needed(d: Decision) -> set[str]:
    """The outputs that must be proven: all that the op declares for the problem, but for optional ones."""
    op = _op(d.op)
    if op is None:
        return set()
    problem = op.from_signature(d.signature)
    return {o.name for o in op.outputs(problem, d.direction) if not o.optional}


def _unknown(d: Decision) -> list[str]:
    needed = ["jax", "jaxlib", "source_hash"]
    spec = registry.find_kernel(d.kernel)
    if spec is not None and spec.backend == "triton":
        needed.append("triton")
    if d.device.platform != "cpu":
        needed.append("compiler")
    return [name for name in needed if getattr(d.environment, name) == UNKNOWN]


def _unknown_knobs(d: Decision) -> str:
    """The reason why the kernel that is installed here does not take the config of ``d``; ``""`` without one."""
    spec = registry.find_kernel(d.kernel)
    search = spec.searches.get(d.direction) if spec else None
    if search is None:
        return ""
    try:
        config_from_dict(search.config, d.config)
    except UsageError as error:
        return str(error)
    return ""


def add_guards(
    rows: Sequence[Decision], guards: Sequence[Decision], evidence: EvidenceOf
) -> tuple[list[Decision], dict[str, int]]:
    """Asks a pack of ``rows`` for each of ``guards``, measured problems that it does not hold, as a job would ask.

    Where the answer fails, or loses to the untuned config, the untuned config is added. It may itself answer for
    another guard, so the rest is asked again until nothing is added. Returns what was added, and the manifest's entry.
    """
    added: list[Decision] = []
    worst = 0.0
    while True:
        shipped = ranked([*rows, *added])
        pack = pack_from_files(pack_files(shipped, name="draft", version="0"))
        environments = {(d.kernel, d.environment.digest): d.environment for d in shipped}
        indexes: dict[tuple[str, str], RowIndex] = {}
        losing: dict[int, Decision] = {}
        replayed = unproven = 0
        for number, guard in enumerate(guards):
            match = _answer(pack, guard, indexes)
            if match is None:
                continue
            seen = evidence(guard)
            environment = environments[guard.kernel, match.row.env]
            record = _same_config(seen, guard.kernel, environment, match.row.config)
            at = record.environment if record else guard.environment
            untuned = seen.heuristic(guard.kernel, at)
            if record is None or untuned is None or (record.median_ns is None and not record.failure):
                unproven += 1
                continue
            replayed += 1
            loss = _loss(record, untuned)
            worst = max(worst, loss or 0.0)
            if loss is None or loss > MARGIN:
                losing[number] = _untuned(guard, untuned)
        if not losing:
            return added, {
                "replayed": replayed + len(added),
                "unproven": unproven,
                "lost": len(added),
                "worst_loss_ppm": round(worst * 1e6),
                "heuristic_rows": len(added),
            }
        guards = [guard for number, guard in enumerate(guards) if number not in losing]
        added += sorted(losing.values(), key=lambda d: (d.median_ns or 0, d.kernel))


class _Anyone:
    """The judge of a replay: no environment but the trials' own, so that the answer is the same on every machine."""

    def __init__(self, guard: Decision):
        self._guard = guard
        self._spec = registry.find_kernel(guard.kernel)
        self._op = _op(guard.op)
        self._problem = self._op.from_signature(guard.signature) if self._op else None

    def grade(self, row: Any, pack: Pack) -> Grade:
        return Grade.VERIFIED

    def takes_part(self, row: Any) -> bool:
        return True

    def refusal(self, row: Any, pack: Pack) -> str | None:
        if self._spec is None:
            return None
        search = self._spec.searches[self._guard.direction]
        try:
            config = config_from_dict(search.config, row.config)
        except UsageError as error:
            return str(error)
        return search.infeasible(self._problem, self._guard.device, config)

    def adapt(self, row: Any) -> Any:
        if self._spec is None or self._op is None:
            return row

        return adapted(self._op, self._spec, row, self._problem, self._guard.device)


def _answer(pack: Pack, guard: Decision, indexes: dict[tuple[str, str], RowIndex]) -> Match | None:
    op = _op(guard.op)
    if op is None:
        return None
    key = (guard.op, guard.direction)
    index = indexes.setdefault(key, RowIndex(pack, *key, op.fields))
    question = RowQuestion(
        op=guard.op,
        direction=guard.direction,
        signature=guard.signature,
        fields=op.fields,
        device=guard.device,
        kernel=guard.kernel.split("/")[1],
    )
    return walk(question, iter([(SourceKind.OVERLAY, index)]), _Anyone(guard)).match


def _same_config(seen: Evidence, kernel: str, environment: Environment, config: Mapping[str, Any]) -> Record | None:
    """The record of the config there: in the environment of its row if it was tried in it, else in any."""
    for one in (environment, *seen.environments(kernel)):
        if (record := seen.at(kernel, one, config)) is not None:
            return record
    return None


def _loss(record: Record, untuned: Record) -> float | None:
    """Time over the untuned config's, minus one; None for a config that failed."""
    if record.failure or record.median_ns is None or untuned.median_ns is None:
        return None
    return record.median_ns / untuned.median_ns - 1


def _untuned(guard: Decision, untuned: Record) -> Decision:
    return dataclasses.replace(
        guard,
        environment=untuned.environment,
        config=dict(untuned.config),
        rule=Rule.HEURISTIC,
        median_ns=untuned.median_ns,
        heuristic_ns=untuned.median_ns,
        gain=1.0,
        regret_bound=None,
        worst_error=untuned.worst_error,
        ties=(),
        samples=len(untuned.finals or untuned.samples),
    )


def needs_leave(d: Decision) -> bool:
    """Whether ``d`` only answers where non-deterministic kernels are allowed: its kernel says so, or it was seen."""
    spec = registry.find_kernel(d.kernel)
    return spec is not None and spec.needs_leave(d.direction, d.repeatable)


def _op(name: str) -> Any:
    from attn_tune.ops.registry import get_op

    try:
        return get_op(name)
    except UsageError:
        return None
