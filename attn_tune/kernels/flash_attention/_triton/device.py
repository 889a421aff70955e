"""Device code that several Triton kernels share, and the launch of the bias gradient."""

from attn_tune.kernels.flash_attention.triton.backward import kernel_arrays
from attn_tune.kernels.flash_attention.triton.backward_dbias import backward_dbias
from attn_tune.kernels.flash_attention.triton.forward import walk_keys
from attn_tune.kernels.flash_attention.triton.logits import (
    Extras,
    Rows,
    finish_logits,
    kept,
    load_columns,
    load_rows,
    mix,
    point_extras,
    squash,
)
from attn_tune.kernels.flash_attention.triton.static import dbias_config
from attn_tune.kernels.flash_attention.triton.tile import (
    LN2,
    LOG2E,
    head_rows,
    key_head,
    load_delta,
    load_keys,
    load_lse,
    load_queries,
    owned_tile,
    query_head,
    row_range,
    span_of,
    store_keys,
)

__all__ = [
    "LN2",
    "LOG2E",
    "Extras",
    "Rows",
    "backward_dbias",
    "dbias_config",
    "finish_logits",
    "head_rows",
    "kept",
    "kernel_arrays",
    "key_head",
    "load_columns",
    "load_delta",
    "load_keys",
    "load_lse",
    "load_queries",
    "load_rows",
    "mix",
    "owned_tile",
    "point_extras",
    "query_head",
    "row_range",
    "span_of",
    "squash",
    "store_keys",
    "walk_keys",
]
