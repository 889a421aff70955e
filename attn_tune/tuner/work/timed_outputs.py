"""Judging what was timed: the output of every timed run, outside the timed interval.

Launches close upon one another may race where lone ones did not, so a config that was proven right may still be wrong
while it is timed. An output with the bits of the proven one is as right as that one; any other is judged by the rule.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from attn_tune.ops.contract import Outputs
from attn_tune.tuner.work.validate import Prepared, Verdict, judge, same_bits, worst_of

# Of proven outputs that are kept while many configs take turns, over all of them.
PROVEN_BYTES = 2**32


class TimedOutputs:
    """Checks the timed runs of one executable on ``case`` against a run that was judged right.

    ``names`` are the outputs that must be there; empty for all of the reference's. Without ``prove`` every output is
    judged by the rule.
    """

    def __init__(self, case: Prepared, names: tuple[str, ...] = ()):
        self._case, self._names = case, names
        self._proven: Outputs | None = None
        self._verdict = Verdict(errors=())
        self._runs = self._others = 0

    @property
    def held_bytes(self) -> int:
        """The size of the proven outputs that are kept."""
        return output_bytes(self._proven or {})

    def prove(self, outputs: Outputs) -> None:
        """Keep the outputs of the run that was judged."""
        self._proven = outputs

    def release(self) -> None:
        """Let the proven outputs go: from now on every output is judged by the rule."""
        self._proven = None

    def check(self, outputs: Sequence[Outputs]) -> None:
        """Take the outputs of timed runs; wait for those that still run."""
        self._runs += len(outputs)
        others = outputs
        if self._proven is not None:
            same = same_bits(self._proven, outputs)
            others = [found for found, is_same in zip(outputs, same, strict=True) if not is_same]
            self._others += len(others)
        for found in others:
            # One wrong output is enough.
            if self._verdict.correct:
                late = Verdict(errors=judge(found, self._case, self._names))
                self._verdict = worst_of([self._verdict, late])

    @property
    def verdict(self) -> Verdict:
        """The worst of what was judged; right and without errors where every output had the proven bits."""
        if not self._others:
            return self._verdict
        reason = f"{self._others} of {self._runs} timed runs gave other bits than the proven run"
        return Verdict(errors=self._verdict.errors, repeatable=False, timed=reason)


def output_bytes(outputs: Mapping[str, Any]) -> int:
    """The size of the arrays together."""
    return sum(x.nbytes for x in outputs.values())
