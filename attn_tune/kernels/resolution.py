"""From one question to its choice: the lockfile alone, or else a pin, a stored row, the kernel's heuristic."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from attn_tune.kernels.ask import Ask
from attn_tune.kernels.locked import locked_choice
from attn_tune.kernels.spec import KernelSpec
from attn_tune.packs.rows import Row
from attn_tune.runtime import snapshot
from attn_tune.runtime.answer import Answer, Knobs, Rejection, Rung, SourceKind
from attn_tune.runtime.determinism import Determinism
from attn_tune.runtime.ladder import Match, Question, Step, Walk, walk
from attn_tune.runtime.overlay import View
from attn_tune.runtime.pins import Pin
from attn_tune.schema.config import config_to_dict
from attn_tune.schema.errors import UnsupportedError


@dataclass(frozen=True, slots=True)
class Choice:
    """What runs: the kernel, its config as its own dataclass, and where that came from."""

    spec: KernelSpec
    config: Any
    answer: Answer


@dataclass(frozen=True, slots=True)
class Resolved:
    """The choice, None where nothing supports the problem; and every step on the way to it."""

    choice: Choice | None
    steps: tuple[Step, ...]


def resolve_question(question: Ask, view: View, *, tell: bool = False) -> Resolved:
    """Climbs down from the first to the last who may answer. ``tell`` as ``ladder.walk``.

    Raises:
      LockfileError: a lockfile is in force and does not answer.
    """
    lockfile = view.snapshot.lockfile
    if lockfile is not None:
        spec, config, entry = locked_choice(question, lockfile)
        answer = plain_answer(
            question,
            spec,
            config,
            Rung.LOCKED,
            source=entry.source,
            source_kind=SourceKind.LOCKFILE,
            pack_digest=entry.pack_digest,
            repeatable=entry.repeatable,
        )
        row = _row(question, spec.name, entry.config, f"{entry.rung} when it was frozen")
        step = Step(source=lockfile.path, kind=SourceKind.LOCKFILE, rung=Rung.LOCKED, row=row)
        return Resolved(Choice(spec, config, answer), (step,))
    pinned, pins = _pinned(question, view.pins)
    if pinned is not None:
        return Resolved(pinned, pins)
    walked = _walk(question, view, tell=tell)
    steps = (*pins, *walked.steps)
    rejected = Walk(None, steps).rejected
    if walked.match is not None:
        return Resolved(_from_match(question, walked.match, rejected), steps)
    return Resolved(heuristic(question, rejected), steps)


def heuristic(question: Ask, rejected: tuple[Rejection, ...] = ()) -> Choice | None:
    """The untuned choice: of the kernels that can, the one its platform prefers; None if none can.

    A heuristic must be feasible; one that is not, or is in quarantine, passes to the next kernel all the same. One that
    a row was turned down for, for its bits, comes last: without that row it would have answered, and a row must not
    make a call fail.
    """
    problem, direction, device = question.problem, question.direction, question.device
    able = [
        spec
        for spec in question.specs.values()
        if question.refusal_of(spec) is None and question.reluctance_of(spec, untuned=True) is None
    ]
    last: Choice | None = None
    for spec in sorted(able, key=lambda s: (-s.priority_for(problem, direction, device), s.name)):
        search = spec.searches[direction]
        try:
            config = search.heuristic(problem, device)
        except UnsupportedError as error:  # an installed kernel's own mistake
            rejected = (*rejected, Rejection(subject=f"heuristic of {spec.id}", reason=str(error)))
            continue
        reason = search.infeasible(problem, device, config)
        reason = reason or question.quarantined(spec, config)
        bits = question.unwanted_bits(spec, config)
        if reason is None and bits is None:
            answer = plain_answer(question, spec, config, Rung.HEURISTIC, rejected=rejected)
            return Choice(spec, config, answer)
        if reason is None and last is None and question.determinism is not Determinism.REQUIRED:
            more = {"rejected": rejected, "repeatable": False}
            last = Choice(
                spec, config, plain_answer(question, spec, config, Rung.HEURISTIC, **more)
            )
        turned_down = Rejection(subject=f"heuristic of {spec.id}", reason=reason or bits or "")
        rejected = (*rejected, turned_down)
    return last


def plain_answer(question: Ask, spec: KernelSpec, config: Any, rung: Rung, **more: Any) -> Answer:
    """An answer of a rung without a row."""
    return Answer(
        op=question.op.name,
        direction=question.direction,
        signature=question.signature.text,
        device=str(question.device),
        kernel=spec.name,
        config=Knobs(config_to_dict(config)),
        rung=rung,
        **more,
    )


def nothing_supports(question: Ask, steps: tuple[Step, ...] = ()) -> UnsupportedError:
    """The error of a question that nothing can answer, with every reason."""
    reasons = [f"{r.subject}: {r.reason}" for r in question.refusals()]
    for spec in question.specs.values():
        if question.refusal_of(spec) is None and question.reluctance_of(spec) is None:
            reasons.append(
                f"{spec.id}: its heuristic config cannot be made, may not run or is in quarantine"
            )
    reasons += [f"{r.subject}: {r.reason}" for r in Walk(None, steps).rejected]
    return UnsupportedError(
        f"no kernel can do the {question.direction} of {question.signature} on {question.device}: "
        f"{'; '.join(reasons) or 'none is registered'}"
    )


def _pinned(question: Ask, pins: tuple[Pin, ...]) -> tuple[Choice | None, tuple[Step, ...]]:
    """The innermost pin that speaks of this question and may run; and a step for each that was looked at."""
    steps = []
    for pin in pins:
        text, device = question.signature.text, question.device
        if not pin.concerns(question.op.name, question.direction, text, question.kernel, device):
            continue
        config, reason = question.config_of(pin.kernel, pin.config)
        steps.append(
            Step(
                source=str(pin),
                kind=SourceKind.PIN,
                rung=Rung.PINNED,
                row=_row(question, pin.kernel, pin.config, "pinned"),
                rejected=reason,
                note=pin.ended_by,
            )
        )
        if reason is None:
            spec = question.specs[pin.kernel]
            answer = plain_answer(
                question, spec, config, Rung.PINNED, source=str(pin), source_kind=SourceKind.PIN
            )
            return Choice(spec, config, answer), tuple(steps)
    return None, tuple(steps)


def _row(question: Ask, kernel: str, config: Mapping[str, Any], state: str) -> Row:
    """How a step shows what is in no pack."""
    return Row(
        op=question.op.name,
        direction=question.direction,
        device=question.device.digest,
        signature=question.signature.text,
        kernel=kernel,
        rank=0,
        config=config,
        state=state,
        env="",
    )


def _walk(question: Ask, view: View, *, tell: bool) -> Walk:
    op = question.op
    asked = Question(
        op=op.name,
        direction=question.direction,
        signature=question.signature,
        fields=op.fields,
        device=question.device,
        kernel=question.kernel,
    )
    shelves = snapshot.shelves(view.sources, op.name, question.direction, op.fields)
    return walk(asked, shelves, question, tell=tell)


def _from_match(question: Ask, match: Match, rejected: tuple[Rejection, ...]) -> Choice:
    spec = question.specs[match.row.kernel]
    config, _ = question.config_of(spec.name, match.row.config)
    answer = plain_answer(
        question,
        spec,
        config,
        match.rung,
        source=str(match.pack),
        source_kind=match.kind,
        pack_digest=match.pack.digest,
        level=match.level,
        grade=match.grade,
        row_signature=match.row.signature,
        distance=match.distance,
        adapted_from=None if match.adapted_from is None else Knobs(match.adapted_from),
        state=match.row.state,
        gain_ppm=match.row.gain_ppm,
        regret_ppm=match.row.regret_ppm,
        repeatable=match.row.repeatable,
        features=match.row.features,
        rejected=rejected,
    )
    return Choice(spec, config, answer)
