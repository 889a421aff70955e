"""A process of its own, as a production job is one: the op under ``jit`` takes its configs from the packs in force.

    python benchmarks/pack_in_use.py --grid gpt-oss-20b --lengths 4x4k

Per grid point it calls ``attn_tune.flash_attention`` and its gradients under ``jit`` and prints, per direction, what
the lookup answered and from which pack; before that the Triton launches that were compiled on the way. Then the
counters of all lookups. Exits 1 if a direction was answered by no pack.
"""

import argparse
import sys

from attn_tune.ops.flash_attention.problem import Problem
from attn_tune.tuner.plan.grid import load_grid


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--grid", action="append", required=True)
    parser.add_argument("--lengths", action="append", default=[], help="as attn-tune sweep")
    args = parser.parse_args()

    import attn_tune

    missed = 0
    for name in args.grid:
        lengths = [one for text in args.lengths for one in text.split(",")]
        for point in load_grid(name, lengths=lengths).points:
            print(point.name)
            for launched in run(Problem.from_signature(point.signature)):
                print(f"  launched {launched}")
            for direction in ("fwd", "bwd"):
                answer = attn_tune.explain("flash_attention", point.signature, direction).answer
                print(f"  {answer}, {answer.grade}" if answer else "  no answer")
                missed += not (answer and answer.source)
    counts = attn_tune.stats().lookups
    print("lookups:", ", ".join(f"{count} {rung}" for rung, count in counts.items() if count))
    return 1 if missed else 0


def run(problem: Problem) -> list[str]:
    """Calls the op and its gradients once; the Triton launches of it, none where another kernel was chosen."""
    import jax

    import attn_tune
    from attn_tune.kernels.lang.triton.compile import record_compiles
    from attn_tune.ops.contract import load
    from attn_tune.ops.flash_attention.op import OP

    operands = load(OP.inputs)(problem, "fwd", 0)

    @jax.jit
    def loss(q, k, v):
        out = attn_tune.flash_attention(
            q,
            k,
            v,
            softmax_aux=operands.sinks,
            causal=problem.causal,
            sliding_window=None if problem.window == (None, None) else problem.window,
            logits_soft_cap=problem.soft_cap,
            softmax_scale=problem.scale,
        )
        return out.astype("float32").sum()

    with record_compiles() as compiled:
        step = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2)))
        jax.block_until_ready(step(operands.q, operands.k, operands.v))
    return [
        f"{kernel.name}: {kernel.num_warps} warps, {kernel.shared_bytes} bytes of shared memory"
        for kernel in compiled
    ]


if __name__ == "__main__":
    sys.exit(main())
