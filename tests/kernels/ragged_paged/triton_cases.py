"""Cases of the Triton kernels; a script that prints the name of each right one. It runs in Triton's interpreter.

Those of latents are ``triton_latent``'s, those whose queries are codes ``triton_8bit``'s.
"""

from attn_tune.kernels.registry import get_kernel
from attn_tune.ops.contract import load
from attn_tune.ops.ragged_paged.features import samples

# Programs that decode for each key head; None has no such launch.
CASES = (
    ("contiguous_ragged", None),
    ("paged_at_edges", 4),
    ("paged_at_edges", None),
    ("large_pages", 3),
    ("head_first", None),
    ("interleaved", 4),
    ("group_of_five", 4),
    ("mixed", 4),
    ("decodes", 4),
    ("window_zero", 4),
    ("not_causal", 4),
    ("not_causal_contiguous", None),
    ("not_causal_mixed", 3),
    ("sinks_window_queries", 3),
    ("float8_token_interleaved", 4),
    ("float8_float32", None),
    ("int8_head", 4),
    ("everything", 4),
    ("everything", None),
    ("queries_float8", None),
    ("queries_float8_mixed", 4),
    ("queries_float8_mixed", None),
    ("queries_int8", 3),
    ("queries_int8_contiguous", None),
    ("queries_everything", 4),
    ("queries_everything", None),
    ("latent", 4),
    ("latent", None),
    ("latent_contiguous", None),
    ("latent_mixed", 3),
    ("latent_float32", None),
    ("latent_without_rope", 4),
    ("latent_float8", 4),
    ("latent_blocks", None),
    ("latent_blocks_everything", None),
    ("latent_everything", 4),
    ("latent_everything", None),
)
# The others are exhaustive.
TESTED = (
    "contiguous_ragged None",
    "paged_at_edges 4",
    "group_of_five 4",
    "not_causal_mixed 3",
    "sinks_window_queries 3",
    "float8_token_interleaved 4",
    "int8_head 4",
    "everything None",
    "queries_float8_mixed 4",
    "queries_int8 3",
    "queries_everything None",
    "latent_mixed 3",
    "latent_float32 None",
    "latent_blocks_everything None",
    "latent_everything None",
)


def kernel_of(name):
    """The kernel that takes a sample."""
    of_part = {"latent": "triton_latent", "queries": "triton_8bit"}
    return of_part.get(name.partition("_")[0], "triton")


def main():
    from attn_tune.ops.ragged_paged.inputs import make_inputs
    from tests.kernels.ragged_paged.dense_numpy import assert_right
    from tests.kernels.triton_interpreter import asked_for, prepare_language_once

    prepare_language_once()
    for name, programs in asked_for(CASES):
        problem = samples()[name]
        operands = make_inputs(problem, "fwd", 1)
        search = get_kernel(f"ragged_paged/{kernel_of(name)}").searches["fwd"]
        decoding = {} if programs is None else {"decode_programs": programs, "decode_block_k": 32}
        config = search.config(block_q=32 if programs == 3 else 16, block_k=16, num_warps=4, num_stages=2, **decoding)
        try:
            assert_right(problem, operands, load(search.call)(problem, config, operands))
        except Exception as error:
            print(f"{name} {programs} WRONG {error}", flush=True)
        else:
            print(f"{name} {programs} right", flush=True)


if __name__ == "__main__":
    main()
