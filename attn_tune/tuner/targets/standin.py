"""A longer launch, compiled in the place of one that has two blocks along an axis.

The last of two blocks has the index one, which cannot be told from any other one in the launch's body: by its key such
a launch is like no other. With twice the lengths or sequences there are four blocks, and one compile serves them all.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from attn_tune.kernels.registry import get_op
from attn_tune.schema.signature import Signature
from attn_tune.tuner.protocol import ConfigRef
from attn_tune.tuner.targets.launches import Launch

_TWO = 2
# Fields of a signature that blocks are counted along: lengths, which a mask may tie together, and the batch.
_DOUBLED = (("t", "s"), ("b",), ("b", "t", "s"))


def stand_ins(
    launches: Sequence[Launch],
    ref: ConfigRef,
    launches_for: Callable[[ConfigRef], Sequence[Launch] | None],
) -> list[Launch]:
    """For each of the ``launches`` of ``ref`` one with the same steps and no axis of two; itself where there is none.

    Args:
      launches_for: traces another problem's.
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
    op, values = get_op(ref.signature.op), ref.signature.values
    if ref.problem is not None:
        return
    for names in _DOUBLED:
        sizes = {name: size for name in names if isinstance(size := values.get(name), int)}
        doubled = values | {name: 2 * size for name, size in sizes.items()}
        signature = Signature.build(op.name, ref.signature.version, op.fields, doubled)
        yield replace(ref, signature=signature)
