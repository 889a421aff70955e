"""The arrays of one call of linear attention, which are those of all linear attention."""

from attn_tune.ops.recurrent.operands import BackwardInputs as BackwardInputs, Operands as Operands
