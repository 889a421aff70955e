"""Cases of the Triton kernel. Run as a script in Triton's interpreter it prints the name of each that is right."""

import dataclasses

from attn_tune.ops.sparse_mla.features import samples

# Heads and keys of a tile, and programs that share the indices of a query.
CASES = (
    ("edges", 16, 32, 2),
    ("more_indices_than_keys", 16, 16, 8),
    ("one_query", 16, 16, 4),
    ("everything", 32, 16, 2),
)
# The others are exhaustive.
TESTED = (
    "edges 16 32 2",
    "more_indices_than_keys 16 16 8",
    "everything 32 16 2",
)


def main():
    import jax

    from attn_tune.kernels.sparse_mla.triton.config import Config
    from attn_tune.kernels.sparse_mla.triton.forward import forward
    from attn_tune.ops.sparse_mla.inputs import make_inputs
    from tests.kernels.sparse_mla.dense_numpy import assert_right
    from tests.kernels.triton_interpreter import asked_for, prepare_language_once

    prepare_language_once()
    for name, heads, keys, splits in asked_for(CASES):
        # Five rows are of every kind; the interpreter is slow.
        sample = samples()[name]
        problem = dataclasses.replace(sample, q_len=min(sample.q_len, 5), batch=3 if sample.q_len == 1 else 1)
        operands = jax.jit(make_inputs, static_argnums=(0, 1))(problem, "fwd", 1)
        config = Config(block_n=heads, block_k=keys, num_warps=4, num_stages=2, splits=splits)
        try:
            assert_right(problem, operands, forward(problem, config, operands))
        except Exception as error:
            print(f"{name} {heads} {keys} {splits} WRONG {error}", flush=True)
        else:
            print(f"{name} {heads} {keys} {splits} right", flush=True)


if __name__ == "__main__":
    main()
