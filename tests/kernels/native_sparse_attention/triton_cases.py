"""Cases of the Triton kernel. Run as a script in Triton's interpreter it prints which are right.

Names may be given. The tests run those that have most features together, of few queries: each is a program.
"""

import dataclasses
import sys

FEW = {
    "forward": {"num_kv_heads": 1, "num_q_heads": 3},
    "backward": {"q_len": 37, "kv_len": 37, "num_kv_heads": 1, "num_q_heads": 3},
}

# A sample of the op, a direction, and the keys of a tile; of the backward the rows of a tile, and a share of queries.
CASES = {
    "parts-of-blocks": ("large_blocks", "fwd", 32, 16, 16),
    "several-blocks": ("edges", "fwd", 64, 16, 16),
    "longer-queries": ("longer_queries", "fwd", 16, 16, 16),
    "one-key": ("one_key", "fwd", 16, 16, 16),
    "group-of-twelve": ("group_of_twelve", "fwd", 32, 16, 16),
    "odd-width": ("odd_width", "fwd", 16, 16, 16),
    "everything": ("everything", "fwd", 32, 16, 16),
    "forward": ("longer_keys", "fwd", 32, 16, 16),
    "backward": ("everything", "bwd", 16, 16, 16),
    "backward-local": ("local", "bwd", 16, 32, 16),
    "backward-edges": ("lse_gradient", "bwd", 32, 32, 32),
    "backward-longer-keys": ("longer_keys", "bwd", 16, 16, 16),
    "backward-longer-queries": ("longer_queries", "bwd", 16, 64, 16),
    "backward-large-blocks": ("large_blocks", "bwd", 64, 32, 64),
    "backward-group-of-twelve": ("group_of_twelve", "bwd", 16, 64, 16),
    "backward-group-of-one": ("group_of_one", "bwd", 16, 16, 16),
    "backward-packed": ("packed_edges", "bwd", 16, 32, 16),
    "backward-everything": ("everything", "bwd", 32, 32, 16),
}
TESTED = tuple(FEW)
# The interpreter has no products of less precision than a GPU's: a kernel that is nearly wrong here may be wrong there.
MOST = 0.75


def judged(sample, direction, block_k, block_q, share, **changes):
    """The largest error of a case, by the rule of proof."""
    import jax

    from attn_tune.kernels.native_sparse_attention.triton import SPEC
    from attn_tune.kernels.native_sparse_attention.triton.config import (
        BackwardConfig,
        DkvConfig,
        DqConfig,
        ForwardConfig,
    )
    from attn_tune.ops import tolerance
    from attn_tune.ops.contract import load
    from attn_tune.ops.native_sparse_attention.features import samples
    from attn_tune.ops.native_sparse_attention.op import OP

    problem = dataclasses.replace(samples()[sample], **changes)
    launch = {"num_warps": 4, "num_stages": 2}
    config = ForwardConfig(block_k=block_k, **launch)
    if direction == "bwd":
        owned = min(block_k, problem.block_size)
        config = BackwardConfig(
            dq=DqConfig(block_k=block_k, **launch),
            dkv=DkvConfig(block_q=block_q, block_k=owned, share=share, **launch),
        )

    def run(inputs):
        paths = (OP.reference, OP.baseline)
        exact, plain = (load(path)(problem, direction, inputs) for path in paths)
        return load(SPEC.searches[direction].call)(problem, config, inputs), exact, plain

    inputs = jax.jit(lambda seed: load(OP.inputs)(problem, direction, seed))(1)
    errors = tolerance.compare(*jax.jit(run)(inputs), OP.outputs(problem, direction))
    return max(errors, key=lambda error: error.ratio)


def main():
    from tests.kernels.triton_interpreter import prepare_language_once

    prepare_language_once()
    for name in sys.argv[1:] or CASES:
        try:
            worst = judged(*CASES[name], **FEW.get(name, {}))
            verdict = "right" if worst.ratio <= MOST else f"WRONG {worst.ratio:.2f} {worst}"
        except Exception as error:
            verdict = f"WRONG {type(error).__name__}: {error}"
        print(f"{name} {verdict}", flush=True)


if __name__ == "__main__":
    main()
