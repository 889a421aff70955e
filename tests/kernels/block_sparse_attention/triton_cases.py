"""Cases of the Triton kernels. Run as a script in Triton's interpreter it prints which are right.

Names may be given. `make test` runs those that have most features together; all take some minutes.
"""

import sys

# A sample of the op, a direction, and the rows and keys of a tile. Most masks have blocks of 32 x 32.
CASES = {
    "parts-of-blocks": ("edges_causal", "fwd", 16, 16),
    "several-blocks": ("segments_causal", "fwd", 64, 64),
    "parts-and-several": ("unequal_blocks", "fwd", 32, 16),
    "of-heads": ("of_both", "fwd", 32, 32),
    "lengths": ("lengths", "fwd", 32, 16),
    "window": ("window", "fwd", 16, 32),
    "longer-queries": ("longer_queries", "fwd", 32, 32),
    "large-blocks": ("large_blocks", "fwd", 64, 32),
    "one-query": ("one_query", "fwd", 16, 32),
    "odd-width": ("odd_width", "fwd", 32, 64),
    "float32": ("edges_float32", "fwd", 32, 32),
    "everything": ("everything", "fwd", 32, 32),
    "backward-parts-of-blocks": ("lse_gradient", "bwd", 16, 16),
    "backward-several-blocks": ("segments_causal", "bwd", 64, 64),
    "backward-wide-rows": ("wide_rows", "bwd", 32, 32),
    "backward-of-heads": ("mqa_of_heads", "bwd", 64, 32),
    "backward-of-both": ("of_both", "bwd", 32, 32),
    "backward-lengths": ("lengths", "bwd", 16, 32),
    "backward-window": ("causal_window", "bwd", 32, 16),
    "backward-longer-keys": ("longer_keys", "bwd", 32, 32),
    "backward-float16": ("edges_float16", "bwd", 32, 32),
    "backward-everything": ("everything", "bwd", 32, 32),
}
TESTED = ("everything", "lengths", "backward-everything")
# The interpreter has no products of less precision than a GPU's: a kernel that is nearly wrong here may be wrong there.
MOST = 0.75


def judged(sample, direction, block_q, block_k):
    """The largest error of a case, by the rule of proof."""
    import jax

    from attn_tune.kernels.block_sparse_attention.triton import SPEC
    from attn_tune.kernels.block_sparse_attention.triton.config import (
        BackwardConfig,
        DkvConfig,
        DqConfig,
        ForwardConfig,
    )
    from attn_tune.ops import tolerance
    from attn_tune.ops.block_sparse_attention.features import samples
    from attn_tune.ops.block_sparse_attention.op import OP
    from attn_tune.ops.contract import load

    problem = samples()[sample]
    tile = {"block_q": block_q, "block_k": block_k, "num_warps": 4, "num_stages": 2}
    # The two orders of programs take turns.
    first = block_q == block_k
    config = ForwardConfig(**tile, longest_first=first)
    if direction == "bwd":
        config = BackwardConfig(
            dq=DqConfig(**tile, longest_first=not first), dkv=DkvConfig(**tile, longest_first=first)
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
            worst = judged(*CASES[name])
            verdict = "right" if worst.ratio <= MOST else f"WRONG {worst.ratio:.2f} {worst}"
        except Exception as error:
            verdict = f"WRONG {type(error).__name__}: {error}"
        print(f"{name} {verdict}", flush=True)


if __name__ == "__main__":
    main()
