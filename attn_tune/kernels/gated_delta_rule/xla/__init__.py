"""The gated delta rule in plain XLA: tiles of tokens, or token by token. Runs everywhere."""

from attn_tune.kernels.lang.xla.linear.spec import tiled_spec

SPEC = tiled_spec("gated_delta_rule", has_delta=True)
