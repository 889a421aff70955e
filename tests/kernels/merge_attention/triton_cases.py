"""Cases of the Triton kernel. Run as a script in Triton's interpreter it prints the name of each that is right."""

from attn_tune.ops.merge_attention.features import samples

# Rows of a program: one, several, more than there are.
CASES = (
    ("two_parts", 8),
    ("at_edges", 4),
    ("three_parts", 8),
    ("four_parts", 64),
    ("one_row", 8),
    ("odd_width", 8),
    ("narrow", 16),
    ("wide", 1),
    ("float32", 16),
    ("float16", 8),
    ("narrowed", 8),
    ("widened", 8),
    ("everything", 256),
)
# The others are exhaustive.
TESTED = (
    "at_edges 4",
    "one_row 8",
    "odd_width 8",
    "float16 8",
    "everything 256",
)


def main():
    from attn_tune.kernels.merge_attention.triton.config import Config
    from attn_tune.kernels.merge_attention.triton.forward import forward
    from attn_tune.ops.merge_attention.inputs import make_inputs
    from tests.kernels.merge_attention.dense_numpy import assert_right
    from tests.kernels.triton_interpreter import asked_for, prepare_language_once

    prepare_language_once()
    for name, rows in asked_for(CASES):
        problem = samples()[name]
        operands = make_inputs(problem, "fwd", 1)
        try:
            assert_right(problem, operands, forward(problem, Config(block_rows=rows, num_warps=4), operands))
        except Exception as error:
            print(f"{name} {rows} WRONG {error}", flush=True)
        else:
            print(f"{name} {rows} right", flush=True)


if __name__ == "__main__":
    main()
