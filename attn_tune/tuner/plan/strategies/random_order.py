"""Random search: the baseline of the other strategies."""

import random

from attn_tune.schema.digest import digest_text
from attn_tune.tuner.plan.strategies.space import Search, Space, in_one_batch


def random_order(space: Space) -> Search:
    """The untuned candidate, then the others in an order that only ``space.seed`` decides."""
    first, *rest = space.by_digest or ("",)
    random.Random(digest_text(space.seed)).shuffle(rest)
    return in_one_batch(space, [d for d in (first, *rest) if d])
