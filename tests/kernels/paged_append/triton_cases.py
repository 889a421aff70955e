"""Cases of the Triton kernel. Run as a script in Triton's interpreter it prints the name of each that is right."""

import dataclasses

from attn_tune.ops.paged_append.features import samples

# Rows of a program: one, several tokens of all heads, parts of a token's heads.
CASES = (
    ("contiguous_at_edges", 4),
    ("paged_at_edges", 1),
    ("one_token_pages", 8),
    ("ragged", 8),
    ("many_sequences", 64),
    ("head_first", 8),
    ("interleaved", 8),
    ("odd_heads", 4),
    ("float8_head", 8),
    ("float8_token_interleaved", 8),
    ("int8_tensor", 8),
    ("int8_token", 8),
    ("everything", 4),
)
# The others are exhaustive.
TESTED = (
    "contiguous_at_edges 4",
    "many_sequences 64",
    "head_first 8",
    "odd_heads 4",
    "float8_token_interleaved 8",
    "int8_tensor 8",
    "everything 4",
)


def problem_of(name):
    if name == "many_sequences":
        # More than are compared with a token at a time.
        return dataclasses.replace(samples()["ragged"], batch=150, tokens=200)
    return samples()[name]


def main():
    from attn_tune.kernels.paged_append.triton.config import Config
    from attn_tune.kernels.paged_append.triton.forward import forward
    from attn_tune.ops.paged_append.inputs import make_inputs
    from tests.kernels.paged_append.numpy_append import assert_right
    from tests.kernels.triton_interpreter import asked_for, prepare_language_once

    prepare_language_once()
    for name, rows in asked_for(CASES):
        problem = problem_of(name)
        operands = make_inputs(problem, "fwd", 1)
        config = Config(block_rows=rows, num_warps=4)
        try:
            assert_right(problem, operands, forward(problem, config, operands))
        except Exception as error:
            print(f"{name} {rows} WRONG {error}", flush=True)
        else:
            print(f"{name} {rows} right", flush=True)


if __name__ == "__main__":
    main()
