"""The softmax scale of a problem whose signature alone is known."""

import math


def default_scale(head_dim: int) -> float:
    """``1/sqrt(head_dim)``; one of a width that no problem can have, for the problem's own checks to name it."""
    return 1.0 / math.sqrt(head_dim) if head_dim > 0 else 1.0
