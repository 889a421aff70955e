"""The op ``linear_attention``: linear attention with at most one gate a head and token, forward and backward."""

from attn_tune.ops.linear_attention.problem import Problem
from attn_tune.ops.recurrent.contract import recurrent_op

OP = recurrent_op(Problem, __package__, "linear attention with a gate a head and token, a constant one a head, or none")
