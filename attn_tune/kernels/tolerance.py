"""When an output is right: its error is at most a small multiple of what the working dtype itself can do.

Two measures are taken, and the worse of the two is reported.

``norm``: ``|x - ref| / |ref|`` over the whole array; sees a small loss everywhere.
``row``: the largest ``|x_r - ref_r| / scale_r`` over rows ``r`` (the last axis), where ``scale_r`` is the row's own
norm, or a tenth of the typical row's where that is larger; sees one wrong row among a million.

``lse`` is a logarithm, so its absolute error is the relative error of what it stands for: each of its entries is a row
of its own and no scale is below one.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from attn_tune.schema.trial import OutputError

# Independent roundings add in quadrature: 3 admits nine times as many as the plain computation makes. Flash kernels
# make two to four times as many (unnormalised weights, rescaled accumulators, a rounded delta). The largest row error
# is an extreme value of a long-tailed quantity, and its sampling spread is allowed on top.
NORM_MULTIPLE = 3.0
ROW_MULTIPLE = 4.0
# Where the plain computation happens to be exact, one rounding of the output is still right. Float32 outputs also come
# from other exponentials (exp2 of logits times log2 e) and other orders of summation: a few dozen roundings, in the
# worst row several times as many. The gradient of a query that sees one key is the difference of equal numbers, and
# right only to their rounding: they are tens of times as large as a typical row, and hundreds of times the tenth of one
# that it is measured by. One pass of tf32, whose roundings are 8192 times as large, still fails.
FLOOR_ROUNDINGS = 1.0
FLOOR_ROUNDINGS_FLOAT32 = 32.0
ROW_FLOOR_ROUNDINGS_FLOAT32 = 128.0
GRADIENT_ROW_FLOOR_ROUNDINGS_FLOAT32 = 1024.0
SMALL_ROW = 0.1


def compare(
    outputs: Mapping[str, Array], reference: Mapping[str, Array], baseline: Mapping[str, Array]
) -> tuple[OutputError, ...]:
    """One error per entry of ``outputs``, in its order. The arrays stay on their device; only numbers come back.

    Infinite error: a wrong shape or dtype, a value that is not finite where the reference is, or a finite one where
    the reference is minus infinity.

    Args:
      outputs: what a kernel returned, or some of it.
      reference: the high-precision answers; extra names are ignored.
      baseline: the plain answers, in the dtypes that outputs must have.

    Raises:
      KeyError: an output that the reference or the baseline lacks.
    """
    comparable = {}
    for name, x in outputs.items():
        plain = baseline[name]
        if x.shape == reference[name].shape and x.dtype == plain.dtype:
            comparable[name] = (x, plain, reference[name])
    measured = jax.device_get(_measure(comparable))
    return tuple(
        _judge(name, np.asarray(measured[name]), outputs[name].dtype)
        if name in measured
        else OutputError(output=name, error=float("inf"), allowed=1.0)
        for name in outputs
    )


def _judge(name: str, measures: np.ndarray, dtype: jnp.dtype) -> OutputError:
    # Rows of `measures`: the kernel's, the baseline's. Columns: norm, row.
    floors = (FLOOR_ROUNDINGS, FLOOR_ROUNDINGS)
    if dtype.itemsize >= 4:
        # The gradient of x is called dx.
        row_floor = (
            GRADIENT_ROW_FLOOR_ROUNDINGS_FLOAT32
            if name.startswith("d")
            else ROW_FLOOR_ROUNDINGS_FLOAT32
        )
        floors = (FLOOR_ROUNDINGS_FLOAT32, row_floor)
    rounding = float(jnp.finfo(dtype).eps) / 2
    multiples = (NORM_MULTIPLE, ROW_MULTIPLE)
    candidates = [
        OutputError(
            output=name,
            error=float(error),
            allowed=max(floor * rounding, multiple * float(plain)),
        )
        for error, plain, multiple, floor in zip(*measures, multiples, floors, strict=True)
    ]
    return max(candidates, key=lambda e: e.ratio)


@jax.jit
def _measure(arrays: Mapping[str, tuple[Array, Array, Array]]) -> dict[str, Float[Array, "2 2"]]:
    measured = {}
    for name, (x, plain, exact) in arrays.items():
        wide = exact.astype(jnp.promote_types(exact.dtype, jnp.float32))
        measured[name] = jnp.stack([_errors(y, wide, name == "lse") for y in (x, plain)])
    return measured


def _errors(x: Array, exact: Array, is_log: bool) -> Float[Array, " 2"]:
    finite = jnp.isfinite(exact)
    x = x.astype(exact.dtype)
    same = jnp.all(jnp.where(finite, jnp.isfinite(x), x == exact))
    # One rescaling keeps squares of large gradients inside float32.
    top = jnp.max(jnp.where(finite, jnp.abs(exact), 0.0))
    top = jnp.where(top > 0, top, 1.0)
    if is_log:
        top = jnp.ones_like(top)
    ref = jnp.where(finite, exact, 0.0) / top
    diff = jnp.where(finite, x, 0.0) / top - ref
    if is_log:
        ref, diff = ref[..., None], diff[..., None]
    row_ref, row_diff = (jnp.sqrt(jnp.sum(a * a, axis=-1)) for a in (ref, diff))
    typical = jnp.sqrt(jnp.mean(row_ref * row_ref))
    smallest = 1.0 if is_log else jnp.maximum(SMALL_ROW * typical, jnp.finfo(ref.dtype).tiny)
    row = jnp.max(row_diff / jnp.maximum(row_ref, smallest))
    size = jnp.maximum(typical, 1.0 if is_log else jnp.finfo(ref.dtype).tiny)
    norm = jnp.sqrt(jnp.mean(row_diff * row_diff)) / size
    return jnp.where(same, jnp.stack([norm, row]), jnp.inf)
