"""Kimi delta attention of tokamax for TPU, in Pallas' interpreter, on gates of some strengths: error over allowed.

    pip install tokamax
    JAX_PLATFORMS=cpu python benchmarks/tokamax_kda_gates.py

One line for each kind of gates: the worst error of outputs and final states as a multiple of what the op's rule of
proof allows, or ``nan``. It says which problems that kernel could answer; no time is taken.
"""

import functools
import math
import sys

import jax
import jax.numpy as jnp
from jax.experimental.pallas import tpu as pltpu

from attn_tune.ops.kda.problem import Problem
from attn_tune.ops.recurrent.contract import outputs
from attn_tune.ops.recurrent.inputs import make_inputs
from attn_tune.ops.recurrent.operands import Operands
from attn_tune.ops.recurrent.reference import baseline, reference
from attn_tune.ops.tolerance import compare

_PROBLEM = Problem(
    batch=1, length=128, num_key_heads=2, num_value_heads=2, head_dim=128, v_head_dim=128, scale=128**-0.5,
    has_final_state=True,
)  # fmt: skip


def main() -> int:
    """Prints the lines; returns the exit status."""
    info = pltpu.get_tpu_info_for_chip(pltpu.ChipVersion.TPU_V6E, 1)
    pltpu.get_tpu_info = lambda: info
    given = jax.jit(functools.partial(make_inputs, _PROBLEM, "fwd"))(0)
    for name, gates in _gates(given.g).items():
        o = given._replace(g=gates)
        exact, plain = (jax.jit(functools.partial(f, _PROBLEM, "fwd"))(o) for f in (reference, baseline))
        judged = compare(_tokamax(o), exact, plain, outputs(_PROBLEM, "fwd"))
        worst = max(error.ratio if math.isfinite(error.ratio) else math.inf for error in judged)
        print(f"{name:28} {'nan' if math.isinf(worst) else format(worst, '.2f')}", flush=True)
    return 0


def _gates(drawn: jax.Array) -> dict[str, jax.Array]:
    rare = jnp.arange(drawn.shape[1])[None, :, None, None] % 17 == 3
    found = {"as drawn": drawn}
    found |= {f"{gate} for all tokens": jnp.full_like(drawn, gate) for gate in (-5.0, -8.0, -20.0)}
    strong = (-20.0, -80.0, -88.0, -100.0, -jnp.inf)
    return found | {f"{gate} for one of 17 tokens": jnp.where(rare, gate, drawn) for gate in strong}


def _tokamax(o: Operands) -> dict[str, jax.Array]:
    from tokamax._src.ops.kda.pallas_mosaic_tpu import Config, PallasMosaicTpuKimiDeltaAttention

    with pltpu.force_tpu_interpret_mode():
        (out, state), _ = PallasMosaicTpuKimiDeltaAttention()._fwd(
            *(jnp.moveaxis(x, 2, 0) for x in (o.q, o.k, o.v, o.g, o.beta)),
            a_log=None,
            delta_time_bias=None,
            scale=_PROBLEM.scale,
            initial_state=None,
            output_final_state=True,
            use_qk_l2norm=False,
            use_gate_in_kernel=False,
            segment_ids=None,
            lower_bound=None,
            context_parallel_metadata=None,
            max_num_segments=None,
            return_residuals=False,
            config=Config(),
        )
    return {"out": jnp.moveaxis(out, 0, 2), "state": state[:, 0]}


if __name__ == "__main__":
    sys.exit(main())
