"""Cases of the Triton kernels. Run as a script in Triton's interpreter it prints the name of each that is right.

Names may be given. All take a minute; `make test` runs those that have most features together.
"""

import sys

# A kernel, a direction, a sample of the op, and the knobs that are not as in ``_KNOBS``.
CASES = {
    "short-chunks": ("triton", "fwd", "at_edges", {"chunk": 16}),
    "long-chunks": ("triton", "fwd", "states", {"chunk": 64}),
    "several-tiles": ("triton", "fwd", "odd_dims", {"block_v": 16}),
    "float32": ("triton", "fwd", "float32_at_edges", {"chunk": 16}),
    "ragged": ("triton", "fwd", "ragged_states", {}),
    "no-gate": ("triton", "fwd", "delta_rule", {}),
    "segments": ("triton", "fwd", "many_tokens", {"segments": 4}),
    "segments-ragged": ("triton", "fwd", "ragged_states", {"chunk": 16, "segments": 3}),
    "one-token": ("triton", "fwd", "one_token_at_edges", {}),
    "backward": ("triton", "bwd", "states", {"gradient_block_v": 16}),
    "backward-long-chunks": ("triton", "bwd", "one_key_head", {"chunk": 64}),
    "backward-narrow": ("triton", "bwd", "odd_dims", {"chunk": 32}),
    "backward-float32": ("triton", "bwd", "float32_at_edges", {"chunk": 16}),
    "backward-ragged": ("triton", "bwd", "ragged_delta_rule", {}),
    "backward-float16": ("triton", "bwd", "float16", {"chunk": 64}),
    "backward-one-token": ("triton", "bwd", "one_token_at_edges", {"chunk": 16}),
    "step": ("triton_steps", "fwd", "one_token_at_edges", {}),
    "steps": ("triton_steps", "fwd", "four_tokens", {"block_v": 16}),
    "steps-ragged": ("triton_steps", "fwd", "ragged_states", {}),
    "steps-pool": ("triton_steps", "fwd", "pool_ragged", {}),
    "pool": ("triton", "fwd", "pool", {}),
    "steps-odd": ("triton_steps", "fwd", "odd_dims", {}),
}
TESTED = ("segments-ragged", "steps-pool", "backward-ragged")
_KNOBS = {
    "triton fwd": {"chunk": 32, "prepare_warps": 4, "block_v": 32, "num_warps": 4, "num_stages": 2},
    "triton bwd": {"chunk": 32, "prepare_warps": 4, "block_v": 32, "num_warps": 4, "num_stages": 2}
    | {"pair_warps": 4, "gradient_block_v": 32, "gradient_columns": 16, "gradient_warps": 4, "gradient_stages": 1},
    "triton_steps fwd": {"block_v": 32, "num_warps": 4},
}


def judged(name):
    """The output of a case that is furthest from right, and by which part of what is allowed."""
    import jax

    from attn_tune.kernels.registry import get_kernel
    from attn_tune.ops.contract import load
    from attn_tune.ops.registry import ops
    from attn_tune.ops.tolerance import compare

    kernel, direction, sample, knobs = CASES[name]
    op = ops()["gated_delta_rule"]
    problem = load(op.samples)()[sample]
    search = get_kernel(f"gated_delta_rule/{kernel}").searches[direction]
    config = search.config(**_KNOBS[f"{kernel} {direction}"] | knobs)

    def answers(seed):
        inputs = load(op.inputs)(problem, direction, seed)
        return inputs, *(load(path)(problem, direction, inputs) for path in (op.reference, op.baseline))

    inputs, exact, plain = jax.jit(answers)(1)
    outputs = load(search.call)(problem, config, inputs)
    declared = op.outputs(problem, direction)
    assert outputs.keys() == {output.name for output in declared}
    # Of a pool only what a kernel must write is compared; the rest must stay, and may hold NaN.
    originals = {output.name: getattr(inputs, output.updates) for output in declared if output.updates}
    return max(compare(outputs, exact, plain, declared, originals), key=lambda error: error.ratio)


def main():
    from tests.kernels.triton_interpreter import prepare_language_once

    prepare_language_once()
    for name in sys.argv[1:] or CASES:
        try:
            worst = judged(name)
            verdict = "right" if worst.ratio <= 1 else f"WRONG {worst}"
        except Exception as error:
            verdict = f"WRONG {type(error).__name__}: {error}"
        print(f"{name} {verdict}", flush=True)


if __name__ == "__main__":
    main()
