"""The ladder: from the question to the best stored row that may be used, with every step on record.

Sources in order; in each, device exact, variant, family; at each, exact signature, bucket, bounded neighbour. The
order is fixed and depends on nothing but the question and the packs, so that every process answers alike.

The rows of the exact signature are a ranked list: if the first may not be used, the next one is asked. Of another
signature only the winner answers, with its config adapted to the question: the first of the kernels that this job may
use at all. Its losers do not answer, because they were not measured against an untuned kernel at the problem asked for.
If the question names a kernel, that kernel's row answers, at any rank.
"""

import functools
import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from attn_tune.packs.reader import Pack
from attn_tune.packs.rows import Row
from attn_tune.runtime.active.row_index import RowIndex
from attn_tune.runtime.lookup.answer import DeviceLevel, Rejection, Rung, SourceKind
from attn_tune.runtime.lookup.signature_distance import distance, shape_of
from attn_tune.runtime.lookup.text_distance import Near
from attn_tune.schema.decision import Rule
from attn_tune.schema.device import Device
from attn_tune.schema.environment import Grade
from attn_tune.schema.errors import UsageError
from attn_tune.schema.signature import Field, Signature, Value
from attn_tune.schema.words import counted


class Judge(Protocol):
    """Says whether a stored row may be used here. Its answers depend on nothing but the row and this process."""

    def grade(self, row: Row, pack: Pack) -> Grade:
        """The distance of the row's software from this one's."""
        ...

    def takes_part(self, row: Row) -> bool:
        """Whether this job may use the row's kernel and config at all: what they need is installed and allowed."""
        ...

    def refusal(self, row: Row, pack: Pack) -> str | None:
        """The reason why the row may not be used on this device for this problem; None if it may."""
        ...

    def adapt(self, row: Row) -> Row | str:
        """The row of another signature with its config made one for this problem, or why that cannot be."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class RowQuestion:
    """One question to the rows of packs. ``kernel`` is a name within the op, None for any.

    Attributes:
      op, direction, signature: the problem.
      fields: the fields of the op's signature.
      device: the device that will run it.
    """

    op: str
    direction: str
    signature: Signature
    fields: tuple[Field, ...]
    device: Device
    kernel: str | None = None


@dataclass(frozen=True, slots=True)
class Match:
    """The row that answers. ``adapted_from`` is its config as stored, if ``row`` has another one; else None.

    Attributes:
      row: the row, adapted where the kernel changed its config for this problem.
      pack: the pack that holds it.
      kind: the kind of source that the pack came from.
      rung: the step of the ladder.
      level: the part of the device that the row shares.
      grade: the worth of the row's environment here.
      distance: sum of ``|log2(asked / tuned)|`` over the scalable fields.
    """

    row: Row
    pack: Pack
    kind: SourceKind
    rung: Rung
    level: DeviceLevel
    grade: Grade
    distance: float
    adapted_from: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One thing the walk looked at: a rung of a source, and what became of it.

    Attributes:
      source: the name of the pack or of the overrides.
      kind: the kind of that source.
      rung: the rung of the ladder, None where the source has none.
      level: how close the row's device is.
      row: the row that was looked at, None for a level without an answer.
      distance: the distance of the row's problem.
      grade: how well the row's environment fits.
      rejected: the reason why ``row`` may not be used, None if it answers or there is no row.
      adapted_from: as in ``Match``.
      path: the path of the pack; empty for overrides.
      note: how the row's device differs; of an override, how to end it; without ``row``, what came nearest.
    """

    source: str
    kind: SourceKind
    rung: Rung | None = None
    level: DeviceLevel | None = None
    row: Row | None = None
    distance: float = 0.0
    grade: Grade | None = None
    rejected: str | None = None
    adapted_from: Mapping[str, Any] | None = None
    path: str = ""
    note: str = ""

    @property
    def chosen(self) -> bool:
        """Whether this step's row answered."""
        return self.row is not None and self.rejected is None


@dataclass(frozen=True, slots=True)
class _Judged:
    """A row that came up, adapted where that was asked for. ``refusal`` is why it may not be used, None if it may."""

    row: Row
    grade: Grade
    distance: float
    refusal: str | None
    adapted_from: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Walk:
    """The whole way: the match, or None, and the steps up to it."""

    match: Match | None
    steps: tuple[Step, ...]

    @property
    def rejected(self) -> tuple[Rejection, ...]:
        """Rows that came first but may not be used."""
        return tuple(
            Rejection(subject=f"{s.source} {s.rung} {s.row.kernel} {s.row.signature}", reason=s.rejected)
            for s in self.steps
            if s.row is not None and s.rejected is not None
        )


def walk(
    question: RowQuestion,
    indexes: Iterator[tuple[SourceKind, RowIndex]],
    judge: Judge,
    *,
    with_nearest: bool = False,
) -> Walk:
    """Climbs down the ladder until a row may be used.

    With ``with_nearest`` the steps also say what came nearest where nothing answered, which takes a look at every row.
    """
    steps: list[Step] = []
    for kind, index in indexes:
        step = functools.partial(Step, source=str(index.pack), kind=kind, path=index.pack.path)
        found = False
        for level, digests in index.groups(question.device):
            found = True
            for rung, candidates in _rungs(question, index, digests, judge):
                for one in candidates:
                    steps.append(
                        step(
                            rung=rung,
                            level=level,
                            row=one.row,
                            distance=one.distance,
                            grade=one.grade,
                            rejected=one.refusal,
                            adapted_from=one.adapted_from,
                            note=index.device_note(question.device, one.row.device),
                        )
                    )
                    if one.refusal is None:
                        match = Match(
                            one.row,
                            index.pack,
                            kind,
                            rung,
                            level,
                            one.grade,
                            one.distance,
                            one.adapted_from,
                        )
                        return Walk(match, tuple(steps))
            note = _nearest(question, index, digests) if with_nearest else ""
            steps.append(step(level=level, note=note))
        if not found:
            steps.append(step(note=_nothing(question, index)))
    return Walk(None, tuple(steps))


def _rungs(
    question: RowQuestion, index: RowIndex, digests: list[str], judge: Judge
) -> Iterator[tuple[Rung, Iterator[_Judged]]]:
    """The judged candidates of each rung, best first; lazily, for most walks end at the first."""
    text = question.signature.text
    yield Rung.EXACT, _judged(0.0, _rows(question, index, digests, text), judge, index.pack)
    near = index.near(question.signature)
    for rung in (Rung.BUCKET, Rung.NEIGHBOUR):
        wanted = [one for one in near if one.is_bucket is (rung is Rung.BUCKET)]
        yield rung, _nearest_first(question, index, digests, judge, wanted)


def _nearest_first(
    question: RowQuestion, index: RowIndex, digests: list[str], judge: Judge, near: list[Near]
) -> Iterator[_Judged]:
    """The winners of ``near``, or the rows of the kernel that is named. Signatures are read when their turn comes."""
    asked = shape_of(question.signature, question.fields)
    for _, group in itertools.groupby(near, key=lambda one: round(one.distance, 9)):
        found: list[tuple[int, Row]] = []
        away = 0.0
        for one in group:
            rows = _rows(question, index, digests, one.text)
            if question.kernel is None:
                rows = list(_winners(rows, judge))
            try:
                signature = Signature.parse(one.text, question.fields) if rows else None
            except UsageError:
                continue  # Of another contract, or of a newer version: it never matches.
            if signature is None:
                continue
            exact = distance(asked, shape_of(signature, question.fields))
            if exact is not None:
                away = exact
                found += rows
        yield from _judged(away, found, judge, index.pack, adapted=True)


def _winners(rows: list[tuple[int, Row]], judge: Judge) -> Iterator[tuple[int, Row]]:
    """Of each device the first row that takes part, and those above it, for which the judge gives reasons.

    Where a rank is missing, in a pack of some kernels alone, what is below it is no winner.
    """
    ranked = sorted(rows, key=lambda one: (one[0], one[1].rank))
    for _, group in itertools.groupby(ranked, key=lambda one: one[0]):
        for rank, one in enumerate(group):
            if one[1].rank != rank:
                break
            yield one
            if judge.takes_part(one[1]):
                break


def _rows(question: RowQuestion, index: RowIndex, digests: list[str], text: str) -> list[tuple[int, Row]]:
    """The rows of one signature for what is asked, each with the position of its device."""
    return [
        (position, row)
        for position, digest in enumerate(digests)
        for row in index.at(digest, text)
        if question.kernel in (None, row.kernel)
    ]


def _judged(
    away: float,
    candidates: list[tuple[int, Row]],
    judge: Judge,
    pack: Pack,
    *,
    adapted: bool = False,
) -> Iterator[_Judged]:
    """Candidates of one rung at one distance, best first.

    Measured before predicted, fresh before stale, then the likest device, the rank across kernels, and the text as the
    last word.
    """
    for row, grade in _graded(candidates, judge, pack):
        if grade is Grade.FOREIGN:
            yield _Judged(row, grade, away, "measured under another contract of the op")
            continue
        here = judge.adapt(row) if adapted else row
        if isinstance(here, str):
            yield _Judged(row, grade, away, here)
        else:
            stored = None if here is row else row.config
            yield _Judged(here, grade, away, judge.refusal(here, pack), stored)


def _graded(candidates: list[tuple[int, Row]], judge: Judge, pack: Pack) -> Iterator[tuple[Row, Grade]]:
    """The candidates in the order of ``_judged``. A grade takes the digest of a kernel: none is asked for too early."""

    def order(candidate: tuple[int, Row]) -> tuple[bool, int, int, str, str]:
        position, row = candidate
        return (row.state == Rule.PREDICTED, position, row.rank, row.signature, row.kernel)

    for _, group in itertools.groupby(sorted(candidates, key=order), key=lambda c: order(c)[0]):
        stale: list[tuple[Row, Grade]] = []
        for _, row in group:
            grade = judge.grade(row, pack)
            # A row that cannot take part keeps its place, so that its refusal is seen before what answers in its stead:
            # where a library is not installed, its version is never that of the row.
            if grade is Grade.STALE and judge.takes_part(row):
                stale.append((row, grade))
            else:
                yield row, grade
        yield from stale


def _nearest(question: RowQuestion, index: RowIndex, digests: list[str]) -> str:
    """For a level without an answer: which stored signature came nearest, and in what it differs."""
    asked = _full(question.signature, question.fields)
    best: tuple[int, float, str] | None = None
    for digest in digests:
        for row, signature in index.everything(digest):
            if question.kernel not in (None, row.kernel):
                continue
            stored = _full(signature, question.fields)
            names = [name for name in asked if asked[name] != stored[name]]
            # Rows that differ in nothing were rejected for another reason, which is a step above.
            if names:
                away = sum(_ratio(asked[name], stored[name]) for name in names)
                text = ", ".join(f"{name} {asked[name]} vs {stored[name]}" for name in names)
                text += _order_note(question, signature)
                best = min(best or (len(names), away, text), (len(names), away, text))
    if best:
        return f"nearest row differs in {best[2]}"
    return _unreadable(index) or "no other row"


def _order_note(question: RowQuestion, stored: Signature) -> str:
    """That a row of near values may not answer, because ordered fields of it are in another order."""
    if shape_of(question.signature, question.fields).order == shape_of(stored, question.fields).order:
        return ""
    pairs = " and of ".join(f"{f.order_with} and {f.name}" for f in question.fields if f.order_with)
    return f"; the order of {pairs} must agree"


def _nothing(question: RowQuestion, index: RowIndex) -> str:
    if index.error:
        return f"ignored: {index.error}"
    return f"no rows of {question.op}.{question.direction} for {question.device.family}"


def _unreadable(index: RowIndex) -> str:
    if not index.unreadable:
        return ""
    more = len(index.unreadable) - 1
    return index.unreadable[0] + (f" (and {counted(more, 'row')} more)" if more else "")


def _full(signature: Signature, fields: tuple[Field, ...]) -> dict[str, Value]:
    values = signature.values
    return {field.name: values.get(field.name, field.default) for field in fields}


def _ratio(a: Value, b: Value) -> float:
    """``|log2(a / b)|`` of two counts; more than any count for what cannot be compared."""
    if isinstance(a, int) and isinstance(b, int) and a > 0 and b > 0:
        return abs(math.log2(a) - math.log2(b))
    return 64.0
