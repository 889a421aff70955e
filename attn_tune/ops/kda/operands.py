"""The arrays of one call of the delta rule with a gate for each channel, which are those of all linear attention."""

from attn_tune.ops.recurrent.operands import BackwardInputs as BackwardInputs, Operands as Operands
