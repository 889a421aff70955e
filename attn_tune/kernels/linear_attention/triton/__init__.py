"""Linear attention in Triton: chunks of tokens, whose states are carried in float32 registers."""

from attn_tune.kernels.lang.triton.linear.config import BackwardConfig, ForwardConfig
from attn_tune.kernels.lang.triton.linear.spec import linear_spec

SPEC = linear_spec(
    "linear_attention",
    forward=ForwardConfig,
    backward=BackwardConfig,
    summary="chunks of tokens in Triton: one walk forwards, two at one time backwards, states in float32 registers",
)
