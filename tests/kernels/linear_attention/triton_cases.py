"""Cases of the Triton kernels of linear attention. Run as a script in Triton's interpreter it prints which are right.

Names may be given. All take a minute and a half; `make test` runs those that have most features together.
"""

import importlib
import sys

# An op, a kernel, a direction, a sample of the op, and the knobs that are not as in ``_KNOBS``.
CASES = {
    "none": ("linear_attention/triton", "fwd", "no_gate_at_edges", {}),
    "constant": ("linear_attention/triton", "fwd", "constant_at_edges", {"block_v": 16, "turned": True}),
    "head": ("linear_attention/triton", "fwd", "odd_dims", {"chunk": 64}),
    "float32": ("linear_attention/triton", "fwd", "float32_at_edges", {"chunk": 16}),
    "segments": ("linear_attention/triton", "fwd", "many_tokens", {"segments": 4}),
    "segments-ragged": (
        "linear_attention/triton",
        "fwd",
        "ragged_states",
        {"chunk": 16, "segments": 3, "turned": True},
    ),
    "backward": ("linear_attention/triton", "bwd", "states", {"chunk": 64}),
    "backward-sum": ("linear_attention/triton", "bwd", "constant", {"chunk": 64}),
    "backward-constant": ("linear_attention/triton", "bwd", "ragged_constant", {}),
    "backward-float32": ("linear_attention/triton", "bwd", "float32_at_edges", {"chunk": 16}),
    "backward-group": ("linear_attention/triton", "bwd", "one_key_head", {}),
    "backward-narrow": ("linear_attention/triton", "bwd", "odd_dims", {}),
    "steps-constant": ("linear_attention/triton_steps", "fwd", "one_token_constant", {}),
    "channels": ("gla/triton", "fwd", "odd_dims", {"chunk": 64, "prepare_columns": 16, "turned": True}),
    "channels-weak": ("gla/triton", "fwd", "state_out", {"chunk": 64}),
    "channels-float16": ("gla/triton", "fwd", "float16", {}),
    "channels-float32": ("gla/triton", "fwd", "float32_at_edges", {"chunk": 16}),
    "channels-ragged": ("gla/triton", "fwd", "ragged_states", {"segments": 2}),
    "channels-backward": ("gla/triton", "bwd", "odd_dims", {"chunk": 64}),
    "channels-backward-weak": ("gla/triton", "bwd", "state_in", {"chunk": 64}),
    "channels-backward-ragged": ("gla/triton", "bwd", "ragged_states", {}),
    "channels-backward-float32": ("gla/triton", "bwd", "float32_at_edges", {"chunk": 16}),
    "steps-channels": ("gla/triton_steps", "fwd", "ragged_states", {}),
}
TESTED = (
    "segments-ragged",
    "backward-sum",
    "channels",
    "channels-backward-float32",
    "channels-backward-weak",
    "steps-channels",
)
_WALK = {"chunk": 32, "block_v": 32, "num_warps": 4, "num_stages": 2}
_PREPARED = {"prepare_warps": 4, "prepare_columns": 32}
_GRADIENTS = {"gradient_block_v": 32, "gradient_warps": 4, "gradient_stages": 1}
_KNOBS = {
    "linear_attention/triton fwd": _WALK,
    "linear_attention/triton bwd": _WALK | _GRADIENTS,
    "gla/triton fwd": _WALK | _PREPARED,
    "gla/triton bwd": _WALK | _PREPARED | _GRADIENTS | {"gradient_columns": 32},
    "linear_attention/triton_steps fwd": {"block_v": 32, "num_warps": 4},
    "gla/triton_steps fwd": {"block_v": 32, "num_warps": 4},
}


def judged(kernel, direction, sample, knobs):
    """The output that is furthest from right, and by which part of what is allowed."""
    import jax

    from attn_tune.ops.contract import load
    from attn_tune.ops.recurrent.contract import outputs as declared_by
    from attn_tune.ops.recurrent.inputs import make_inputs
    from attn_tune.ops.recurrent.reference import baseline, reference
    from attn_tune.ops.tolerance import compare

    op, _, name = kernel.partition("/")
    problem = importlib.import_module(f"attn_tune.ops.{op}.samples").samples()[sample]
    search = importlib.import_module(f"attn_tune.kernels.{op}.{name}").SPEC.searches[direction]
    config = search.config(**_KNOBS.get(f"{kernel} {direction}", {}) | knobs)

    def answers(seed):
        inputs = make_inputs(problem, direction, seed)
        return inputs, *(f(problem, direction, inputs) for f in (reference, baseline))

    inputs, exact, plain = jax.jit(answers)(1)
    outputs = load(search.call)(problem, config, inputs)
    declared = declared_by(problem, direction)
    assert outputs.keys() == {output.name for output in declared}
    # Of a pool only what a kernel must write is compared; the rest must stay, and may hold NaN.
    originals = {output.name: getattr(inputs, output.updates) for output in declared if output.updates}
    return max(compare(outputs, exact, plain, declared, originals), key=lambda error: error.ratio)


def main():
    from tests.kernels.triton_interpreter import prepare_language_once

    prepare_language_once()
    for name in sys.argv[1:] or CASES:
        try:
            worst = judged(*CASES[name])
            verdict = "right" if worst.ratio <= 1 else f"WRONG {worst}"
        except Exception as error:
            verdict = f"WRONG {type(error).__name__}: {error}"
        print(f"{name} {verdict}", flush=True)


if __name__ == "__main__":
    main()
