"""Gated linear attention in plain XLA: tiles of tokens, or token by token. Runs everywhere."""

from attn_tune.kernels.lang.xla.linear.spec import tiled_spec

SPEC = tiled_spec("gla", has_delta=False)
