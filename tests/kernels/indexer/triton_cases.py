"""Cases of the Triton kernel. Run as a script in Triton's interpreter it prints the name of each that is right."""

import dataclasses

from attn_tune.ops.indexer.features import samples

# Queries and keys of a tile.
CASES = (
    ("edges", 16, 64),
    ("more_queries_than_keys", 16, 16),
    ("one_query", 1, 32),
    ("odd_heads", 1, 64),
    ("everything", 16, 128),
)
# The others are exhaustive.
TESTED = (
    "edges 16 64",
    "more_queries_than_keys 16 16",
    "one_query 1 32",
    "everything 16 128",
)


def main():
    from attn_tune.kernels.indexer.triton.config import Config
    from attn_tune.kernels.indexer.triton.forward import forward
    from attn_tune.ops.indexer.inputs import make_inputs
    from tests.kernels.indexer.dense_numpy import assert_right
    from tests.kernels.triton_interpreter import asked_for, prepare_language_once

    prepare_language_once()
    for name, queries, keys in asked_for(CASES):
        # Seven rows are of every kind; the interpreter is slow.
        sample = samples()[name]
        problem = dataclasses.replace(sample, q_len=min(sample.q_len, 7), batch=2 if sample.q_len == 1 else 1)
        operands = make_inputs(problem, "fwd", 1)
        config = Config(block_q=queries, block_k=keys, num_warps=4, num_stages=1)
        try:
            assert_right(problem, operands, forward(problem, config, operands))
        except Exception as error:
            print(f"{name} {queries} {keys} WRONG {error}", flush=True)
        else:
            print(f"{name} {queries} {keys} right", flush=True)


if __name__ == "__main__":
    main()
