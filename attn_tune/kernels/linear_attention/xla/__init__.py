"""Linear attention in plain XLA: tiles of tokens, or token by token. Runs everywhere."""

from attn_tune.kernels.lang.xla.linear.spec import tiled_spec

SPEC = tiled_spec("linear_attention", has_delta=False)
