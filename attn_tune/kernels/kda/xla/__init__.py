"""The delta rule with a gate for each channel in plain XLA: tiles of tokens, or token by token. Runs everywhere."""

from attn_tune.kernels.lang.xla.linear.spec import tiled_spec

SPEC = tiled_spec("kda", has_delta=True)
