"""A ragged call over tokamax's kernel."""

from jaxtyping import Array

from attn_tune.kernels.lang.pallas_tpu.batched.attend import attend
from attn_tune.kernels.lang.pallas_tpu.batched.config import Config
from attn_tune.ops.ragged_paged.operands import Operands
from attn_tune.ops.ragged_paged.problem import Problem


def forward(problem: Problem, config: Config, operands: Operands) -> dict[str, Array]:
    """``out`` [tokens, N, V] in q's dtype and ``lse`` [tokens, N] in float32."""
    q = operands.q
    out, lse = attend(problem, config, operands, q, operands.cu_q_lens, q.shape[0])
    return {"out": out, "lse": lse}
