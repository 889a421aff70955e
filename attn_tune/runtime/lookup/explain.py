"""The steps of one lookup as text."""

import dataclasses
import html
import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from attn_tune.packs.wheel import installed_packs
from attn_tune.runtime.lookup.answer import (
    Answer,
    DeviceLevel,
    Rejection,
    SourceKind,
    changed_knobs,
)
from attn_tune.runtime.lookup.ladder import Step
from attn_tune.schema.decision import state_words
from attn_tune.schema.device import Device
from attn_tune.schema.words import config_words, counted


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Explanation:
    """The whole ladder for one question. Its ``repr`` is its text, in a notebook too.

    Attributes:
      op, direction, signature: the question.
      device: the device that was asked for.
      steps: everything the walk looked at, in order, up to the row that answered.
      ignored: packs that could not be used at all, with the reason.
      kernels: kernels that cannot do the problem here, with the reason.
      able: kernels, by id, that can, in the order in which they are asked for an untuned config.
      absent: those of ``kernels``, by id, that can do nothing on the device; the text has one line for all.
      turned_down: untuned configs, by kernel, that may not answer, with the reason.
      heuristic: what would run untuned; None where nothing supports the problem.
      answer: what runs; None likewise, and where the call is refused.
      refused_by: the setting by which the call, a miss, raises ``NoDataError``; ``""`` where it does not.
      only_by: the file of overrides that alone answers; ``""`` without one.
      only_ended_by: the step after which the others answer again; ``""`` likewise.
      unmet: the exact row whose kernel lacks software here, while the device is another one than this machine's: with
        that software it answers there. None without one.
    """

    op: str
    direction: str
    signature: str
    device: Device
    steps: tuple[Step, ...]
    ignored: tuple[Rejection, ...]
    kernels: tuple[Rejection, ...]
    able: tuple[str, ...]
    absent: tuple[str, ...]
    turned_down: tuple[Rejection, ...]
    heuristic: Answer | None
    answer: Answer | None
    refused_by: str = ""
    only_by: str = ""
    only_ended_by: str = ""
    unmet: Step | None = None

    @property
    def override_ended_by(self) -> str:
        """The step that ends the override that answers; ``""`` where none does."""
        chosen = [s.note for s in self.steps if s.chosen and s.kind is SourceKind.OVERRIDE]
        return chosen[0] if chosen else ""

    def __str__(self) -> str:
        return self.text()

    def text(self, *, every: bool = False, width: int | None = None) -> str:
        """The steps, one a line; with ``every`` the ``able`` and ``absent`` kernels too, and equal steps one by one.

        Lines of more than ``width`` characters are folded between words. None folds nothing.
        """
        lines = [
            *_folded(f"{self.op}.{self.direction}  {self.signature}", width, 5),
            *_folded(f"device {self.device}  {_key(self.device)}", width, 5),
        ]
        table = [_ignored(r) for r in self.ignored] + [_step(s) for s in self.steps]
        if not self.steps and not self.ignored:
            table.append(("packs", "none holds rows"))
        table += [(r.subject, f"rejected: {r.reason}") for r in self.turned_down]
        if self.heuristic is not None:
            table.append(("untuned", self._untuned(self.heuristic)))
            table += self._behind(self.heuristic) if every else ()
        folded = () if every else self.absent
        table += [(f"kernel {r.subject}", f"unsupported: {r.reason}") for r in self.kernels if r.subject not in folded]
        if folded:
            table.append((counted(len(folded), "kernel"), "cannot run here (--all lists them)"))
        if not every:
            table = list(_joined(table))
        column = max(len(left) for left, _ in table)
        for number, (left, right) in enumerate(table, start=1):
            line, indent = f"{number:>2}. {left:<{column}}  {right}", column + 6
            if width and len(line) > width and indent > width // 2:
                lines += _folded(f"{number:>2}. {left}", width, 5)
                line, indent = f"     {right}", 5
            lines += _folded(line, width, indent)
        if self.answer is None and not self.refused_by:
            lines.append("nothing can run this problem here")
        if self.unmet is not None and self.unmet.row is not None:
            row = self.unmet.row
            lines += _folded(
                f"This machine has no {self.device}, and lacks what {row.kernel} needs ({self.unmet.rejected}). A job "
                f"on one that has both gets: {row.kernel} {config_words(row.config)}",
                width,
                0,
            )
        return "\n".join(lines)

    __repr__ = __str__

    def _behind(self, heuristic: Answer) -> Iterator[tuple[str, str]]:
        """The kernels that would be asked only if the untuned one could not."""
        order = [name.rpartition("/")[2] for name in self.able]
        for before, name in itertools.pairwise(order[order.index(heuristic.kernel) :]):
            if not any(r.subject == f"untuned config of {self.op}/{name}" for r in self.turned_down):
                yield f"kernel {self.op}/{name}", f"can do it; behind {before} in the untuned order"

    def _untuned(self, heuristic: Answer) -> str:
        text = f"{heuristic.kernel} {config_words(heuristic.config or {})}"
        if self.refused_by:
            return f"{text}  refused by {self.refused_by}: the call raises NoDataError"
        is_chosen = self.answer is not None and self.answer.is_miss
        rejected = sum(step.rejected is not None for step in self.steps)
        why = f"{counted(rejected, 'stored row')} above may not answer here" if rejected else "nothing stored answers"
        return text + (f"  CHOSEN ({why})" if is_chosen else "")

    def _repr_html_(self) -> str:
        # Notebooks wrap the lines of a plain repr, and the table falls apart.
        return f"<pre style='white-space: pre'>{html.escape(str(self))}</pre>"

    def to_dict(self) -> dict[str, Any]:
        """The same as plain data, for JSON."""
        return dataclasses.asdict(self)


def _joined(table: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Steps that follow one another and say the same, as one; packs without a row for the device are only counted."""

    def key(step: tuple[str, str]) -> tuple[str, str]:
        place, text = step
        return "" if text.startswith("no rows of ") else place, text

    for (place, text), run in itertools.groupby(table, key):
        steps = list(run)
        if len(steps) == 1:
            yield steps[0]
        elif place:
            yield place, f"{text}  ({counted(len(steps), 'row')})"
        else:
            yield counted(len(steps), "pack"), f"{text} (--all lists them)"


def _folded(line: str, width: int | None, indent: int) -> list[str]:
    """``line`` in lines of at most ``width`` characters where words allow it; a number keeps its unit."""
    if width is None or len(line) <= width:
        return [line]
    import textwrap

    kept = re.sub(r"(?<=[0-9]) (?=%|B\b|W\b|units\b)", "\0", line)
    wrapped = textwrap.wrap(
        kept,
        width,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
        replace_whitespace=False,
    )
    return [one.replace("\0", " ") for one in wrapped]


def _key(device: Device) -> str:
    facts = [device.family, f"{device.units} units" if device.units else "number of units unknown"]
    if device.shared_bytes:
        facts.append(f"{device.shared_bytes} B on chip")
    if device.power_watts:
        facts.append(f"{device.power_watts} W")
    return f"({', '.join(facts)}; {device.digest})"


def _ignored(rejection: Rejection) -> tuple[str, str]:
    return (rejection.subject, f"ignored: {rejection.reason}")


def _step(step: Step) -> tuple[str, str]:
    place = f"{_label(step)} {step.source}".strip()
    if step.level is not None:
        place += f", device {step.level}"
    if step.row is None:
        return place, step.note if step.level is None else f"miss: {step.note}"
    row = step.row
    text = f"{step.rung}: {row.kernel} {config_words(row.config)}"
    if step.adapted_from is not None:
        text += f", adapted from {config_words(changed_knobs(step.adapted_from, row.config))}"
    if step.rejected is not None:
        return place, f"{text}  rejected: {step.rejected}"
    state = state_words(row.state)
    facts = [str(step.grade), state] if step.grade else [state]
    if step.distance:
        facts.append(f"{2**step.distance:.2f}x away: {row.signature}")
    if step.kind is SourceKind.OVERRIDE:
        facts.append(f"asked before all packs; to end it: {step.note}")
    elif step.note:
        facts.append(f"device differs in {step.note}")
    if row.regret_ppm is not None:
        facts.append(f"regret at most {max(0, row.regret_ppm) / 1e4:.1f} % where measured")
    if row.gain_ppm is not None:
        facts.append(f"{1 + row.gain_ppm / 1e6:.2f}x as fast as the kernel's untuned config of then")
    if row.repeatable is False:
        facts.append("bits differ from run to run")
    if row.features is not None:
        facts.append(f"feature problems passed: {row.features}")
    return place, f"{text}  CHOSEN ({', '.join(facts)})"


def _label(step: Step) -> str:
    match step.kind:
        case SourceKind.OVERRIDE:
            return ""  # Its source says it.
        case SourceKind.OVERLAY:
            return "use_pack"
        case SourceKind.WHEEL:
            return f"pack of {installed_packs().get(step.path, 'a wheel')}:"
        case _:
            return f"{step.kind} pack"


def nearest_text(steps: tuple[Step, ...]) -> str:
    """The row that came nearest, for a miss."""
    rejected = [s for s in steps if s.rejected is not None]
    if rejected:
        return f"the {rejected[0].rung} row of {rejected[0].source} is rejected: {rejected[0].rejected}"
    order = {level: number for number, level in enumerate(DeviceLevel)}
    levels = [s for s in steps if s.level is not None]
    levels.sort(key=lambda s: order[s.level])  # type: ignore[index]
    if levels:
        return f"{levels[0].note} ({levels[0].source})"
    return steps[0].note if steps else "no pack holds rows"
