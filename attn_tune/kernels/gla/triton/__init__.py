"""Gated linear attention in Triton: chunks of tokens, whose states are carried in float32 registers."""

from attn_tune.kernels.lang.triton.linear.config import ChannelBackwardConfig, ChannelForwardConfig
from attn_tune.kernels.lang.triton.linear.spec import linear_spec

SPEC = linear_spec(
    "gla",
    forward=ChannelForwardConfig,
    backward=ChannelBackwardConfig,
    summary="chunks of tokens in Triton, cut in halves again and again, so that no exponential of gates overflows",
)
