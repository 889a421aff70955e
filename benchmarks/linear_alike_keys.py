"""Errors of kernels of linear attention where the keys of a whole chunk are alike, as multiples of what is allowed.

    JAX_PLATFORMS=cpu python benchmarks/linear_alike_keys.py --kernel gated_delta_rule/xla --direction bwd

One line for each dtype and kind of inputs: the worst error of each output as a multiple of what the op's rule of proof
allows, largest first. Kernels of Triton run in its interpreter; for the chosen configs the device is an H200. No time
is taken.
"""

import argparse
import os
from collections.abc import Iterator
from pathlib import Path

# Kinds of inputs: whether all keys of a head are alike, whether there are gates, a factor of strengths between 0 and 2,
# and one strength for all tokens instead.
KINDS = {
    "keys in runs of one to three, gates, strengths to 2": (False, True, 1.0, None),
    "alike keys, gates, strengths to 1": (True, True, 0.5, None),
    "alike keys, gates, strengths to 2": (True, True, 1.0, None),
    "alike keys, gates, strengths of 1.98": (True, True, 1.0, 1.98),
    "alike keys, no gates, strengths to 1": (True, False, 0.5, None),
    "alike keys, no gates, strengths of 1": (True, False, 1.0, 1.0),
    "alike keys, no gates, strengths to 2": (True, False, 1.0, None),
    "alike keys, no gates, strengths of 1.98": (True, False, 1.0, 1.98),
}


def main() -> None:
    """Prints the lines, and writes them to the file that is named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernel", default="gated_delta_rule/xla", help="of an op with the delta rule")
    parser.add_argument("--direction", choices=("fwd", "bwd"), default="fwd")
    parser.add_argument("--length", type=int, default=150, help="tokens of the sequence")
    parser.add_argument("--dtypes", nargs="+", default=["bfloat16", "float32"])
    parser.add_argument("--out", type=Path, help="a file that the lines are added to")
    args = parser.parse_args()
    if "/triton" in args.kernel:
        os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported
    for line in lines(args.kernel, args.direction, args.length, args.dtypes):
        print(line, flush=True)
        if args.out:
            with args.out.open("a") as file:
                file.write(line + "\n")


def lines(kernel: str, direction: str, length: int, dtypes: list[str]) -> Iterator[str]:
    """A line for each dtype and kind of inputs.

    Args:
      kernel: its full name, of an op with the delta rule.
      direction: ``fwd`` or ``bwd``.
      length: the tokens of the sequence.
      dtypes: those of queries, keys and values.
    """
    import jax
    import jax.numpy as jnp

    from attn_tune.devices.identity import device_from_kind
    from attn_tune.kernels.registry import get_kernel
    from attn_tune.ops.contract import load
    from attn_tune.ops.recurrent.contract import outputs
    from attn_tune.ops.recurrent.inputs import make_inputs
    from attn_tune.ops.recurrent.reference import baseline, reference
    from attn_tune.ops.registry import get_op
    from attn_tune.ops.tolerance import compare

    name = kernel.partition("/")[0]
    search = get_kernel(kernel).searches[direction]
    call, device = load(search.call), device_from_kind("nvidia-h200")
    for dtype in dtypes:
        problem = get_op(name).problem(
            batch=1, length=length, num_key_heads=2, num_value_heads=4, head_dim=32, v_head_dim=32, scale=32**-0.5,
            dtype=dtype, gate="channel" if name == "kda" else "head", has_beta=True, has_initial_state=True,
            has_final_state=True, at_edges=True,
        )  # fmt: skip
        config = search.heuristic(problem, device)
        drawn = jax.jit(lambda p=problem: make_inputs(p, direction, 0))()
        for kind, (is_alike, has_gates, factor, strength) in KINDS.items():
            o = drawn if direction == "fwd" else drawn.operands
            o = o._replace(
                k=jnp.broadcast_to(o.k[:, :1], o.k.shape) if is_alike else o.k,
                g=o.g if has_gates else jnp.zeros_like(o.g),
                beta=factor * o.beta if strength is None else jnp.full_like(o.beta, strength),
            )
            given = o if direction == "fwd" else drawn._replace(operands=o)
            found, exact, plain = (
                jax.jit(f)(given)
                for f in (
                    lambda x, p=problem, c=config: call(p, c, x),
                    lambda x, p=problem: reference(p, direction, x),
                    lambda x, p=problem: baseline(p, direction, x),
                )
            )
            judged = compare(found, exact, plain, outputs(problem, direction))
            worst = sorted(((error.ratio, error.output) for error in judged), reverse=True)
            figures = ", ".join(f"{output} {ratio:.2f}" for ratio, output in worst)
            yield f"{kernel} {direction} {dtype}, {kind}: {figures}"


if __name__ == "__main__":
    main()
