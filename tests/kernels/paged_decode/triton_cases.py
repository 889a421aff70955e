"""Cases of the Triton kernel. Run as a script in Triton's interpreter it prints the name of each that is right."""

from attn_tune.ops.paged_decode.features import samples

# Programs for each key head: fewer than sequences, as many as blocks, more than blocks; None is one a sequence.
CASES = (
    ("contiguous_ragged", None),
    ("contiguous_ragged", 4),
    ("paged_at_edges", 4),
    ("paged_at_edges", 64),
    ("large_pages", 5),
    ("large_pages", 4),
    ("head_first", None),
    ("eight_queries", 6),
    ("window_zero", 4),
    ("sinks_window_queries", 9),
    ("float8_token_interleaved", 4),
    ("float8_float32", 4),
    ("int8_token", 5),
    ("everything", 6),
    ("latent", 64),
    ("latent_contiguous", None),
    ("latent_large_pages", 5),
    ("latent_everything", 6),
)
# The others are exhaustive.
TESTED = (
    "contiguous_ragged None",
    "large_pages 4",
    "paged_at_edges 64",
    "head_first None",
    "sinks_window_queries 9",
    "float8_token_interleaved 4",
    "everything 6",
    "latent 64",
    "latent_everything 6",
)


def main():
    from attn_tune.kernels.paged_decode._triton.config import Config
    from attn_tune.kernels.paged_decode.triton.forward import forward
    from attn_tune.kernels.paged_decode.triton.limits import lacks_narrow
    from attn_tune.ops.paged_decode.inputs import make_inputs
    from tests.kernels.paged_decode.dense_numpy import assert_right
    from tests.kernels.triton_interpreter import asked_for, prepare_language_once

    prepare_language_once()
    for name, programs in asked_for(CASES):
        problem = samples()[name]
        operands = make_inputs(problem, "fwd", 1)
        config = Config(
            block_q=8 if programs in (4, 9) and lacks_narrow(problem) is None else 16,
            block_k=16 if programs == 64 else 32,
            num_warps=4,
            num_stages=2,
            num_programs=programs,
            least_blocks=2 if programs == 9 else 1,
        )
        try:
            assert_right(problem, operands, forward(problem, config, operands))
        except Exception as error:
            print(f"{name} {programs} WRONG {error}", flush=True)
        else:
            print(f"{name} {programs} right", flush=True)


if __name__ == "__main__":
    main()
