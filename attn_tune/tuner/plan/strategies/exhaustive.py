"""Everything."""

from attn_tune.tuner.plan.strategies.space import Search, Space, in_one_batch


def exhaustive(space: Space) -> Search:
    """Every candidate, in the kernel's order and in one batch, so that all can be compiled ahead."""
    return in_one_batch(space, space.open)
