"""Checks that the rows of a pack can answer: each is looked up on its own device, as a job would."""

import enum
from collections.abc import Iterator
from dataclasses import dataclass

from attn_tune.kernels.registry import find_kernel
from attn_tune.kernels.spec import LIBRARIES
from attn_tune.ops.registry import get_op
from attn_tune.packs.reader import Pack
from attn_tune.packs.rows import Row
from attn_tune.runtime.active.row_index import RowIndex
from attn_tune.runtime.determinism import Determinism
from attn_tune.runtime.lookup.answer import SourceKind
from attn_tune.runtime.lookup.ladder import RowQuestion, Walk, walk
from attn_tune.runtime.lookup.question import Question, missing
from attn_tune.runtime.overrides.active import Overrides
from attn_tune.schema.environment import Grade
from attn_tune.schema.errors import UsageError


class Reach(enum.StrEnum):
    """The result of one look-up."""

    REACHED = "reached"
    """The row answers."""
    DEAD = "dead"
    """The row does not answer a job of these settings."""
    UNINSTALLED = "uninstalled"
    """A module of the kernel is not installed here, so that it cannot be told."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Covered:
    """The result for one row: its reach, the grade of its environment here, and why it does not answer.

    Attributes:
      row: the row.
      device: the device, as text.
      reach: the result.
      grade: None where the row was not reached.
      reason: empty for a row that answers.
    """

    row: Row
    device: str
    reach: Reach
    grade: Grade | None = None
    reason: str = ""


def cover(pack: Pack, determinism: Determinism = Determinism.USUAL, unproven: bool = False) -> Iterator[Covered]:
    """Look up every row of ``pack``: its signature, direction and kernel, on the device that it declares.

    ``determinism`` and ``unproven`` are the settings of the job. Rows of a kernel that declares that it is not
    deterministic are meant for the jobs that allow such, and are looked up as one of these would, unless
    ``determinism`` forbids that. The pack's own quarantine list holds.
    """
    overrides = Overrides(carried=[pack.quarantine])
    indexes: dict[tuple[str, str], RowIndex] = {}
    for row in pack.rows:
        device = pack.devices[row.device]
        try:
            reach, grade, reason = _reach(pack, row, indexes, overrides, determinism, unproven)
        except UsageError as error:  # An op, a field, a value or a direction that this version does not know.
            reach, grade, reason = Reach.DEAD, None, str(error)
        yield Covered(row=row, device=str(device), reach=reach, grade=grade, reason=reason)


def _reach(
    pack: Pack,
    row: Row,
    indexes: dict[tuple[str, str], RowIndex],
    overrides: Overrides,
    determinism: Determinism,
    unproven: bool,
) -> tuple[Reach, Grade | None, str]:
    op = get_op(row.op)
    spec = find_kernel(f"{row.op}/{row.kernel}")
    if spec is None:
        return Reach.DEAD, None, f"kernel {row.op}/{row.kernel} is not installed"
    device = pack.devices[row.device]
    if determinism is Determinism.USUAL and spec.needs_leave(row.direction):
        determinism = Determinism.WAIVED
    # The judge knows of no kernel that was asked for by name: that would be leave for bits that differ.
    question = Question(op, row.direction, row.signature, device, None, overrides, determinism, unproven)
    refusal, absent = question.refusal_of(spec), missing(spec)
    # A library's kernel refuses everything where the library is missing.
    if spec.backend in LIBRARIES and refusal and "not found" in refusal:
        absent = refusal
    if absent:
        # What turns the row down on every machine goes before what this one lacks.
        reason = question.overridden(spec, row.config) or question.refusal(row, pack)
        return (Reach.UNINSTALLED, None, absent) if reason in (None, absent) else (Reach.DEAD, None, reason)
    key = (row.op, row.direction)
    index = indexes.get(key) or indexes.setdefault(key, RowIndex(pack, *key, op.fields))
    walked = walk(
        RowQuestion(
            op=op.name,
            direction=row.direction,
            signature=question.signature,
            fields=op.fields,
            device=question.device,
            kernel=row.kernel,
        ),
        iter([(SourceKind.OVERLAY, index)]),
        question,
    )
    match = walked.match
    if match is not None and match.row.key == row.key:
        return Reach.REACHED, match.grade, ""
    return Reach.DEAD, None, _why(row, question, walked)


def _why(row: Row, question: Question, walked: Walk) -> str:
    if question.signature.text != row.signature:
        return f"a call of this problem asks for {question.signature}"
    for step in walked.steps:
        if step.row is not None and step.row.key == row.key and step.rejected:
            return step.rejected
    if walked.match is not None:
        return f"{walked.match.row.signature} answers in its place"
    return "nothing answers"
