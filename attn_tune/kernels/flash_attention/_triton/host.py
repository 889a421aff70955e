"""Tiles, limits and candidates that several Triton kernels share. Importing this loads neither jax nor triton."""

from attn_tune.kernels.flash_attention.triton.adapt import cut_tile
from attn_tune.kernels.flash_attention.triton.config import DkvConfig, ForwardConfig
from attn_tune.kernels.flash_attention.triton.heuristic import block_cap
from attn_tune.kernels.flash_attention.triton.limits import (
    accumulators,
    has_tensor_memory,
    infeasible,
    shared_bytes,
    shared_bytes_at_most,
    shared_limit,
    unsupported,
)
from attn_tune.kernels.flash_attention.triton.space import (
    grid,
    nearest_first,
    owned_sizes,
    walked_sizes,
    with_caps,
)
from attn_tune.kernels.flash_attention.triton.static import padded

DECIDES_NO_CODE = "spaces, limits and untuned choices; a row holds its config"

__all__ = [
    "DkvConfig",
    "ForwardConfig",
    "accumulators",
    "block_cap",
    "cut_tile",
    "grid",
    "has_tensor_memory",
    "infeasible",
    "nearest_first",
    "owned_sizes",
    "padded",
    "shared_bytes",
    "shared_bytes_at_most",
    "shared_limit",
    "unsupported",
    "walked_sizes",
    "with_caps",
]
