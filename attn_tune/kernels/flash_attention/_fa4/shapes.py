"""Facts of a problem that decide both what can be launched and what is."""

from attn_tune.ops.flash_attention.problem import Problem


def has_mask(p: Problem) -> bool:
    """Whether pairs are hidden by segments or positions, which the kernels ask for element by element."""
    return p.has_segments or p.has_positions


def padded_dims(p: Problem) -> tuple[int, int]:
    """The head dims of the backward's tiles."""
    return round_up(p.head_dim, 32), round_up(p.v_head_dim, 32)


def round_up(size: int, step: int) -> int:
    """The next multiple of ``step``."""
    return -(-size // step) * step
