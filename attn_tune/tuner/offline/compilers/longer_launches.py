"""Find longer launches to compile in the place of those that have two blocks along an axis.

The last of two blocks has the index one, which looks like any other one in the launch's body: by its key such
a launch is like no other. With twice the lengths or sequences there are four blocks, and one compile serves them all.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from attn_tune.ops.contract import load
from attn_tune.ops.registry import get_op
from attn_tune.tuner.offline.compilers.launches import Launch
from attn_tune.tuner.protocol import ConfigRef

_TWO = 2


def longer_launches(
    launches: Sequence[Launch],
    ref: ConfigRef,
    launches_for: Callable[[ConfigRef], Sequence[Launch] | None],
) -> list[Launch]:
    """For each of the ``launches`` of ``ref`` one with the same steps and no axis of two; itself where there is none.

    Args:
      launches_for: traces the launches of another problem.
    """
    found = list(launches)
    for other in _longer(ref):
        if not any(_TWO in one.grid for one in found):
            break
        longer = launches_for(other) or ()
        if len(longer) == len(found):
            pairs = zip(launches, found, longer, strict=True)
            found = [_better(own, now, new) for own, now, new in pairs]
    return found


def _better(own: Launch, now: Launch, new: Launch) -> Launch:
    is_like = own.likeness == new.likeness
    return new if is_like and new.grid.count(_TWO) < now.grid.count(_TWO) else now


def _longer(ref: ConfigRef) -> Iterator[ConfigRef]:
    """The config on the op's longer variants of its problem; none for an op without a walk."""
    op = get_op(ref.signature.op)
    if ref.problem is not None or not op.walk:
        return
    for problem in load(op.walk).longer(op.from_signature(ref.signature)):  # type: ignore[attr-defined]
        yield replace(ref, signature=op.to_signature(problem))
