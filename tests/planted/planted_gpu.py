"""Harm that only a real GPU does: two launches of the planted forward, for ``tests/soak/fault_battery.py``."""

import jax
import triton
import triton.language as tl

from attn_tune.kernels.lang.triton.call import triton_call

# Elements; four tebibytes from any allocation.
FAR = 1 << 40


@triton.jit
def write_out_of_bounds(x, out, FAR: tl.constexpr):
    tl.store(out, tl.load(x))
    tl.store(out + FAR, tl.load(x))


@triton.jit
def spin(x, out, FAR: tl.constexpr):
    # No thread writes x: it equals itself for ever, which the compiler may not know of a volatile load.
    first = tl.load(x, volatile=True)
    now = tl.load(x, volatile=True)
    while now == first:
        now = tl.load(x, volatile=True)
    tl.store(out, now)


KERNELS = {"write_out_of_bounds": write_out_of_bounds, "spin": spin}


def harm(defect: str, x: jax.Array) -> jax.Array:
    """``x``, once the launch has come back."""
    (touched,) = triton_call(
        KERNELS[defect],
        x,
        out_types=[jax.ShapeDtypeStruct((16,), x.dtype)],
        grid=(1,),
        constexprs={"FAR": FAR},
        num_warps=1,
    )
    return x + touched[0] * 0
