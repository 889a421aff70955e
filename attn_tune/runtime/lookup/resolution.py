"""From one question to its choice: an override, a stored row, or the kernel's heuristic."""

from dataclasses import dataclass
from typing import Any

from attn_tune.kernels.registry import get_kernel
from attn_tune.kernels.spec import KernelSpec
from attn_tune.runtime.active.settings import row_indexes
from attn_tune.runtime.active.view import View
from attn_tune.runtime.determinism import Determinism
from attn_tune.runtime.lookup.answer import Answer, Knobs, Rejection, Rung, SourceKind
from attn_tune.runtime.lookup.ladder import Match, RowQuestion, Step, Walk, walk
from attn_tune.runtime.lookup.question import Question
from attn_tune.runtime.overrides.answer import overridden
from attn_tune.schema.config import config_to_dict
from attn_tune.schema.errors import UnsupportedError


@dataclass(frozen=True, slots=True)
class Choice:
    """The choice for one question: the kernel, its config as its own dataclass, and where that came from.

    Attributes:
      spec: the kernel.
      config: its config dataclass; plain data of it is in ``answer``.
      answer: kernel and config by name, with the reasons.
    """

    spec: KernelSpec
    config: Any
    answer: Answer


@dataclass(frozen=True, slots=True)
class Resolved:
    """The choice, None where nothing supports the problem; and every step on the way to it.

    Attributes:
      choice: the choice.
      steps: the steps, in order.
    """

    choice: Choice | None
    steps: tuple[Step, ...]


def resolve_question(question: Question, view: View, *, with_nearest: bool = False) -> Resolved:
    """Ask overrides, then packs, then heuristics. ``with_nearest`` as ``ladder.walk``.

    Raises:
      LockfileError: only a file of overrides may answer, and it does not.
    """
    found, asked = overridden(question)
    if found is not None:
        spec, config, entry = found
        frozen = entry.frozen
        answer = plain_answer(
            question,
            spec,
            config,
            Rung.OVERRIDE,
            source=frozen.source if frozen else str(entry),
            source_kind=SourceKind.OVERRIDE,
            pack_digest=frozen.pack_digest if frozen else "",
            repeatable=frozen.repeatable if frozen else None,
        )
        return Resolved(Choice(spec, config, answer), asked)
    walked = _walk(question, view, with_nearest=with_nearest)
    steps = (*asked, *walked.steps)
    rejected = Walk(None, steps).rejected
    if walked.match is not None:
        return Resolved(_from_match(question, walked.match, rejected), steps)
    return Resolved(heuristic(question, rejected)[0], steps)


def untuned_order(question: Question) -> list[KernelSpec]:
    """The kernels that can do a problem and may answer, in the order in which they are asked for an untuned config.

    Of several in one place those of installed packages come last: nothing has proven them here.
    """
    able = [s for s in question.specs if question.refusal_of(s) is None and question.reluctance_of(s) is None]
    place, asked = question.op.place, (question.problem, question.direction, question.device)
    return sorted(able, key=lambda s: (-place(s, *asked), bool(s.entry_point), s.name))


def heuristic(question: Question, rejected: tuple[Rejection, ...] = ()) -> tuple[Choice | None, tuple[Rejection, ...]]:
    """The untuned choice: of the kernels that can, the one its platform prefers; None if none can.

    Behind it ``rejected``, the rows that were turned down before, and the untuned configs that were turned down here.

    A heuristic must be feasible; one that is not, or is forbidden, passes to the next kernel all the same. One that
    a row was turned down for, for its bits, comes last: without that row it would have answered, and a row must not
    make a call fail.
    """
    problem, direction, device = question.problem, question.direction, question.device
    last: Choice | None = None
    for spec in untuned_order(question):
        search = spec.searches[direction]
        try:
            config = search.heuristic(problem, device)
        except UnsupportedError as error:  # an installed kernel's own mistake
            rejected = (*rejected, Rejection(subject=f"untuned config of {spec.id}", reason=str(error)))
            continue
        reason = search.infeasible(problem, device, config)
        reason = reason or question.forbidden(spec, config)
        bits = question.unwanted_bits(spec, config)
        if reason is None and bits is None:
            answer = plain_answer(question, spec, config, Rung.UNTUNED, rejected=rejected)
            return Choice(spec, config, answer), rejected
        if reason is None and last is None and question.determinism is not Determinism.REQUIRED:
            more = {"rejected": rejected, "repeatable": False}
            last = Choice(spec, config, plain_answer(question, spec, config, Rung.UNTUNED, **more))
        turned_down = Rejection(subject=f"untuned config of {spec.id}", reason=reason or bits or "")
        rejected = (*rejected, turned_down)
    return last, rejected


def plain_answer(question: Question, spec: KernelSpec, config: Any, rung: Rung, **more: Any) -> Answer:
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


def nothing_supports(question: Question, steps: tuple[Step, ...] = ()) -> UnsupportedError:
    """The error of a question that nothing can answer, with every reason."""
    reasons = [f"{r.subject}: {r.reason}" for r in question.refusals()]
    _, turned_down = heuristic(question)
    reasons += [f"{r.subject}: {r.reason}" for r in (*turned_down, *Walk(None, steps).rejected)]
    what = f"the {question.direction} of {question.signature} on {question.device}"
    if question.kernel:
        return UnsupportedError(f"{question.kernel} cannot do {what}: {'; '.join(reasons) or 'it is not registered'}")
    return UnsupportedError(f"no kernel can do {what}: {'; '.join(reasons) or 'none is registered'}")


def _walk(question: Question, view: View, *, with_nearest: bool) -> Walk:
    op = question.op
    asked = RowQuestion(
        op=op.name,
        direction=question.direction,
        signature=question.signature,
        fields=op.fields,
        device=question.device,
        kernel=question.kernel,
    )
    found = row_indexes(view.sources, op.name, question.direction, op.fields)
    return walk(asked, found, question, with_nearest=with_nearest)


def _from_match(question: Question, match: Match, rejected: tuple[Rejection, ...]) -> Choice:
    spec = get_kernel(f"{question.op.name}/{match.row.kernel}")
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
