"""The op ``gated_delta_rule``: linear attention with a gated state and the delta rule, forward and backward."""

from attn_tune.ops.gated_delta_rule.problem import Problem
from attn_tune.ops.recurrent.contract import recurrent_op

OP = recurrent_op(Problem, __package__, "linear attention with a gated state and the delta rule, forward and backward")
