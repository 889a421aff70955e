"""The choice of decisions for a pack."""

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from attn_tune.schema import Decision, Device, Trial


@dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    """The conditions of an export; None narrows nothing.

    Attributes:
      op: the op.
      kernels: names or ``"op/name"``; the best among them is the pack's winner.
      directions: the directions.
      device: a device, a digest, a variant or a family.
      signatures: texts of signatures.
      rules: those of ``Rule``.
      winners: whether the runners-up of other kernels are left out.
      min_gain: the least ratio of heuristic time to chosen time.
    """

    op: str | None = None
    kernels: Collection[str] | None = None
    directions: Collection[str] | None = None
    device: Device | str | None = None
    signatures: Collection[str] | None = None
    rules: Collection[str] | None = None
    winners: bool = False
    min_gain: float | None = None

    def __str__(self) -> str:
        given = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        words = [f"{name.replace('_', ' ')} {_short(value)}" for name, value in given.items() if value]
        return ", ".join(words) or "everything"

    def covers(self, d: Decision | Trial) -> bool:
        """Whether ``d`` is of the op, kernels, directions and devices asked for, with any decision."""
        wanted = self.device.digest if isinstance(self.device, Device) else self.device
        return (
            self.op in (None, d.signature.op)
            and (self.directions is None or d.direction in self.directions)
            and wanted in (None, d.device.digest, d.device.variant, d.device.family)
            and (self.kernels is None or bool({d.kernel, d.kernel.split("/")[1]} & set(self.kernels)))
        )

    def wants(self, d: Decision) -> bool:
        """Whether ``d`` fits every condition."""
        return (
            self.covers(d)
            and (self.signatures is None or d.signature.text in self.signatures)
            and (self.rules is None or str(d.rule) in self.rules)
            and (self.min_gain is None or (d.gain is not None and d.gain >= self.min_gain))
        )


def select(decisions: Iterable[Decision], selection: Selection) -> list[Decision]:
    """The decisions that fit, of each op's newest contract, with the ranks closed up."""
    fitting = ranked(sorted(filter(selection.wants, decisions), key=lambda d: d.rank))
    newest: dict[str, int] = defaultdict(int)
    for d in fitting:
        newest[d.op] = max(newest[d.op], d.contract)
    return [d for d in fitting if d.contract == newest[d.op] and not (selection.winners and d.rank)]


def ranked(decisions: Iterable[Decision]) -> list[Decision]:
    """The decisions with new ranks: their order within each problem."""
    counts: Counter[tuple[str, str, str]] = Counter()
    found = []
    for d in decisions:
        key = (d.device.digest, d.signature.text, d.direction)
        found.append(dataclasses.replace(d, rank=counts[key]))
        counts[key] += 1
    return found


def _short(value: object) -> str:
    if not isinstance(value, set | frozenset | tuple | list):
        return str(value)
    names = sorted(map(str, value))
    return ", ".join(names[:2]) + (f" and {len(names) - 2} more" if len(names) > 2 else "")
