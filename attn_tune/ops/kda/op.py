"""The op ``kda``: the delta rule with a gate for each channel of the keys, forward and backward."""

from attn_tune.ops.kda.problem import Problem
from attn_tune.ops.recurrent.contract import recurrent_op

OP = recurrent_op(
    Problem,
    __package__,
    "the delta rule with a gate for each channel of the keys, forward and backward",
)
