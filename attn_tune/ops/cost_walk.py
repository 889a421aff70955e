"""The form in which an op describes the loops of its kernels to the cost model: ``Op.walk`` names a ``CostWalk``.

Kernels on TPUs walk a grid of pairs of blocks: one operand's block rests in fast memory while another's blocks pass.
Pairs that a mask hides whole may be skipped.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

type Config = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Walk:
    """The counts of one launch.

    Attributes:
      steps: pairs of blocks, those that are skipped too.
      visits: pairs of blocks that are computed.
      cut: those of the visits that a mask hides in part.
      rests: resting blocks.
      visit_bytes: copied for one visit, in or out.
      rest_bytes: copied for one resting block.
      copies_itself: whether the launch starts the copies of its blocks by its own instructions, in the loop of the
        visits.
    """

    steps: int
    visits: int
    cut: int
    rests: int
    visit_bytes: int
    rest_bytes: int
    copies_itself: bool = False


@dataclass(frozen=True, kw_only=True)
class CostWalk:
    """The knowledge of one op that predictions need.

    Attributes:
      of_launch: ``(launch, problem, config) -> Walk or None``: the walk of the launch that the compiler calls
        ``launch``; None when it is unknown. ``config`` is of the whole direction or of one part.
      longer: ``(problem) -> problems`` with twice as many blocks along some axes, whose steps are the same.
      is_default: ``(config) -> bool``: whether every block is what the libraries' own kernels use by default. The
        gain of a prediction is relative to such a config.
      has_single_block: ``(config, problem) -> bool``: whether a block of ``config`` spans a whole axis of ``problem``.
        Times of such a config say nothing about longer problems.
    """

    of_launch: Callable[[str, Any, Config], Walk | None]
    longer: Callable[[Any], Iterable[Any]]
    is_default: Callable[[Config], bool]
    has_single_block: Callable[[Config, Any], bool]
