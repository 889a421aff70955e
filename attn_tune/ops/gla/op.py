"""The op ``gla``: linear attention with a gate for each channel of the keys, forward and backward."""

from attn_tune.ops.gla.problem import Problem
from attn_tune.ops.recurrent.contract import recurrent_op

OP = recurrent_op(
    Problem, __package__, "linear attention with a gate for each channel of the keys, forward and backward"
)
