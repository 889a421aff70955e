"""The rule of proof: an output is right if its error is at most a small multiple of what the working dtype can do.

The rule is the output's kind's (``OutputKind``), never by its name. Of floats two measures are taken, and the worse
of the two is reported.

``norm``: ``|x - ref| / |ref|`` over the whole array; sees a small loss everywhere.
``row``: the largest ``|x_r - ref_r| / scale_r`` over rows ``r`` (the last axis), where ``scale_r`` is the row's own
norm, or a tenth of the typical row's where that is larger; sees one wrong row among a million.

- ``value``, ``gradient``: as above. Integers and booleans must be equal. Where sums cancel (``Output.cancels``) float32
  has a higher floor, and rows of values are judged as those of a state.
- ``logsumexp``: the absolute error of a logarithm is the relative error of what it stands for: each entry is a row of
  its own and no scale is below one. Backwards and merges make weights of it in the dtype of the values beside it: a
  small part of their rounding is allowed too.
- ``state``: a decayed row of a state is small beside the others of its matrix and takes part in the same sums: no scale
  is below the typical row of its matrix (the last two axes).
- ``scalar``: each entry is a row of its own.
- ``index``: the number of wrong entries, of which none is allowed; or the error of the scores that they select.
- ``quantised``: codes times scales against what they stand for; the baseline's error is that of the format, so its
  multiple is smaller.

An output that takes over an operand's buffer must keep the bits of every row that the reference leaves as it was; of a
``scalar``, of every such entry.
"""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from attn_tune.ops.contract import Output, OutputKind
from attn_tune.ops.typed_jax import compile_for, jit
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
# Of sums that cancel: logarithms of gates, up to a few hundred, are added up and rounded before the exponential.
CANCELLING = 4.0
SMALL_ROW = 0.1
# Parts of a rounding of the values that a logarithm beside them may be off by, in norm and row. In bfloat16 they admit
# the tanh of GPUs on the way to it, which in some rows is off by 1.3 times the floor of float32; in float16 they are
# below those floors.
LOGARITHM_PARTS = (1 / 512, 1 / 128)
# The errors of codes are the format's own, nearly the same for everyone.
QUANTISED_NORM_MULTIPLE = 1.5
QUANTISED_ROW_MULTIPLE = 2.0
# Of wrong entries not one is allowed; what is allowed must be positive.
LESS_THAN_ONE = 0.5


def compare(
    outputs: Mapping[str, Array],
    reference: Mapping[str, Array],
    baseline: Mapping[str, Array],
    declared: Iterable[Output],
    originals: Mapping[str, Array] | None = None,
) -> tuple[OutputError, ...]:
    """One error per entry of ``outputs``, in its order. The arrays stay on their device; only numbers come back.

    Infinite error: a wrong shape or dtype, a value that is not finite where the reference is, a finite one where the
    reference is minus infinity, or a changed bit in a row that had to stay as it was.

    Args:
      outputs: the outputs of a kernel, or some of them.
      reference: the high-precision answers; extra names are ignored.
      baseline: the plain answers, in the dtypes that outputs must have.
      declared: the op's outputs; they say the kinds.
      originals: by output, the operand that it takes over (``Output.updates``), as it was before the call.

    Raises:
      KeyError: an output that is not declared, or that the reference or the baseline lacks.
    """
    kinds = {output.name: output for output in declared}
    measures = {
        name: _measure_of(kinds[name], outputs, reference, baseline, (originals or {}).get(name))
        for name in outputs
        if _fits(name, outputs, reference, baseline)
    }
    found = jax.device_get({name: measure() for name, measure in measures.items() if measure is not None})
    values = [x.dtype for name, x in outputs.items() if kinds[name].kind is OutputKind.VALUE]
    coarsest = max((_rounding(dtype) for dtype in values if jnp.issubdtype(dtype, jnp.floating)), default=0.0)
    return tuple(
        _judge(kinds[name], np.asarray(found[name]), outputs[name].dtype, coarsest)
        if found.get(name) is not None
        else OutputError(
            output=name, error=float("inf"), allowed=1.0, mismatch=_mismatch(name, outputs, reference, baseline)
        )
        for name in outputs
    )


def compile_comparison(
    outputs: Mapping[str, jax.ShapeDtypeStruct],
    reference: Mapping[str, jax.ShapeDtypeStruct],
    baseline: Mapping[str, jax.ShapeDtypeStruct],
    declared: Iterable[Output],
    originals: Mapping[str, jax.ShapeDtypeStruct] | None = None,
) -> None:
    """Compile what ``compare`` runs on arrays of such shapes: the same arguments. Nothing is run."""
    for output in declared:
        if output.name in outputs:
            measure = _measure_of(output, outputs, reference, baseline, (originals or {}).get(output.name))
            if measure is not None:
                compile_for(measure.func, *measure.args)


def _fits(name: str, outputs: Mapping[str, Array], *answers: Mapping[str, Array]) -> bool:
    reference, baseline = answers
    x = outputs[name]
    return x.shape == reference[name].shape and x.dtype == baseline[name].dtype


def _mismatch(name: str, outputs: Mapping[str, Array], *answers: Mapping[str, Array]) -> str:
    """The shape and dtype of an output and those that it must have; empty where it has them."""
    if _fits(name, outputs, *answers):
        return ""
    reference, baseline = answers
    x, wanted = outputs[name], f"{baseline[name].dtype}{list(reference[name].shape)}"
    return f"is {x.dtype}{list(x.shape)}, must be {wanted}"


def _measure_of(
    output: Output,
    outputs: Mapping[str, Any],
    reference: Mapping[str, Any],
    baseline: Mapping[str, Any],
    original: Any,
) -> partial[Array] | None:
    """A jitted function of arrays, or of their shapes: the measure of one output.

    It gives the norm and row error of the kernel and of the baseline, or a count of wrong entries. None where another
    output, its scale, is missing.
    """
    x, exact, plain = (arrays[output.name] for arrays in (outputs, reference, baseline))
    if output.kind is OutputKind.INDEX and output.scores:
        return partial(_scores_missed, x, exact, plain, reference[output.scores])
    if output.kind is OutputKind.QUANTISED:
        if output.scale and output.scale not in outputs:
            return None
        ours, theirs = (arrays.get(output.scale) for arrays in (outputs, baseline))
        return partial(_dequantised_errors, x, ours, plain, theirs, exact, original)
    if not jnp.issubdtype(x.dtype, jnp.inexact):
        return partial(_count_wrong, x, exact, output.kind is OutputKind.INDEX and not output.ordered)
    # Floors and multiples stay those of its kind.
    is_float32_value = output.kind is OutputKind.VALUE and x.dtype.itemsize >= 4
    beside_matrix = output.cumulative or (output.cancels and is_float32_value)
    kind = OutputKind.STATE if beside_matrix else output.kind
    return partial(_measure, x, plain, exact, original, kind)


def _judge(output: Output, measures: np.ndarray, dtype: jnp.dtype, of_values: float) -> OutputError:
    """The worse of two measures.

    Args:
      measures: rows are the kernel's and the baseline's, columns norm and row.
      of_values: the coarsest rounding of the values beside the output; 0 if there are none.
    """
    if measures.ndim == 0:
        return OutputError(output=output.name, error=float(measures), allowed=LESS_THAN_ONE)
    working = _working_dtype(output, dtype)
    floors, multiples = (FLOOR_ROUNDINGS, FLOOR_ROUNDINGS), (NORM_MULTIPLE, ROW_MULTIPLE)
    if output.kind is OutputKind.QUANTISED:
        multiples = (QUANTISED_NORM_MULTIPLE, QUANTISED_ROW_MULTIPLE)
    if working.itemsize >= 4:
        sums_cancel = output.kind in (OutputKind.GRADIENT, OutputKind.STATE)
        many = CANCELLING if output.cancels else 1.0
        row = GRADIENT_ROW_FLOOR_ROUNDINGS_FLOAT32 if sums_cancel else ROW_FLOOR_ROUNDINGS_FLOAT32 * many
        floors = (FLOOR_ROUNDINGS_FLOAT32 * many, row)
    least = [floor * _rounding(working) for floor in floors]
    if output.kind is OutputKind.LOGSUMEXP:
        least = [max(one, part * of_values) for one, part in zip(least, LOGARITHM_PARTS, strict=True)]
    candidates = [
        OutputError(
            output=output.name,
            error=float(error),
            # A baseline that is not finite allows nothing.
            allowed=max(floor, multiple * float(plain) if np.isfinite(plain) else 0.0),
        )
        for error, plain, multiple, floor in zip(*measures, multiples, least, strict=True)
    ]
    return max(candidates, key=lambda e: e.ratio)


def _rounding(dtype: jnp.dtype) -> float:
    return float(jnp.finfo(dtype).eps) / 2


def _working_dtype(output: Output, dtype: jnp.dtype) -> jnp.dtype:
    """The dtype whose rounding counts: of codes and indices that of what they stand for."""
    if output.kind in (OutputKind.QUANTISED, OutputKind.INDEX):
        dtype = jnp.dtype(jnp.float32)
    if not output.working_dtype:
        return dtype
    other = jnp.dtype(output.working_dtype)
    return max(dtype, other, key=lambda one: float(jnp.finfo(one).eps))


@partial(jit, static_argnums=4)
def _measure(x: Array, plain: Array, exact: Array, original: Array | None, kind: OutputKind) -> Float[Array, "2 2"]:
    wide = exact.astype(jnp.promote_types(exact.dtype, jnp.float32))
    if original is None:
        return jnp.stack([_errors(y, wide, kind) for y in (x, plain)])
    return _written_errors(x, original, (x, plain), wide, kind)


def _written_errors(
    x: Array, original: Array, values: tuple[Array, Array], wide: Array, kind: OutputKind
) -> Float[Array, "2 2"]:
    """The errors of what is written into ``original``; infinite where ``x`` changes a bit of anything else.

    Args:
      values: what ``x`` stands for, and the baseline's.
    """
    # What no kernel writes is no part of the result, and may hold NaN.
    before = original.astype(wide.dtype)
    untouched = (wide == before) | (jnp.isnan(wide) & jnp.isnan(before))
    if kind is not OutputKind.SCALAR:
        untouched = jnp.all(untouched, axis=-1, keepdims=True)
    kept = jnp.all(jnp.where(untouched, _bits(x) == _bits(original), True))
    measured = jnp.stack([_errors(jnp.where(untouched, 0, y), jnp.where(untouched, 0, wide), kind) for y in values])
    return measured.at[0].set(jnp.where(kept, measured[0], jnp.inf))


def _errors(x: Array, exact: Array, kind: OutputKind) -> Float[Array, " 2"]:
    is_log = kind is OutputKind.LOGSUMEXP
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
    if is_log or kind is OutputKind.SCALAR or ref.ndim == 0:
        ref, diff = ref[..., None], diff[..., None]
    row_ref, row_diff = (jnp.sqrt(jnp.sum(a * a, axis=-1)) for a in (ref, diff))
    typical = jnp.sqrt(jnp.mean(row_ref * row_ref))
    smallest = 1.0 if is_log else jnp.maximum(SMALL_ROW * typical, jnp.finfo(ref.dtype).tiny)
    if kind is OutputKind.STATE and row_ref.ndim:
        matrix = jnp.sqrt(jnp.mean(row_ref * row_ref, axis=-1, keepdims=True))
        smallest = jnp.maximum(smallest, matrix)
    row = jnp.max(row_diff / jnp.maximum(row_ref, smallest))
    size = jnp.maximum(typical, 1.0 if is_log else jnp.finfo(ref.dtype).tiny)
    norm = jnp.sqrt(jnp.mean(row_diff * row_diff)) / size
    return jnp.where(same, jnp.stack([norm, row]), jnp.inf)


@jit
def _dequantised_errors(
    x: Array, scale: Array | None, plain: Array, plain_scale: Array | None, exact: Array, original: Array | None
) -> Float[Array, "2 2"]:
    wide = exact.astype(jnp.promote_types(exact.dtype, jnp.float32))
    ours = x.astype(wide.dtype) * (1 if scale is None else scale)
    values = (ours, plain.astype(wide.dtype) * (1 if plain_scale is None else plain_scale))
    if original is not None:
        return _written_errors(x, original, values, wide, OutputKind.QUANTISED)
    return jnp.stack([_errors(y, wide, OutputKind.QUANTISED) for y in values])


@partial(jit, static_argnums=2)
def _count_wrong(x: Array, exact: Array, as_sets: bool) -> Int[Array, ""]:
    if as_sets and x.ndim:
        x, exact = jnp.sort(x, axis=-1), jnp.sort(exact, axis=-1)
    return jnp.sum(x != exact)


@jit
def _scores_missed(
    x: Array, exact: Array, plain: Array, scores: Float[Array, "*rows candidates"]
) -> Float[Array, "2 2"]:
    """By how much the scores that ``x`` and ``plain`` select differ from the reference's, beside its largest one.

    A negative index selects nothing. Infinite: an index out of range, one twice in a row, or another number of them.
    """
    count = scores.shape[-1]

    def picked(indices: Array) -> Array:
        chosen = jnp.take_along_axis(scores, jnp.clip(indices, 0, count - 1), axis=-1)
        return jnp.sort(jnp.where(indices < 0, -jnp.inf, chosen), axis=-1)

    right = picked(exact)
    finite = jnp.isfinite(right)
    top = jnp.maximum(jnp.max(jnp.where(finite, jnp.abs(right), 0.0)), jnp.finfo(scores.dtype).tiny)

    def missed(indices: Array) -> Array:
        ordered = jnp.sort(indices, axis=-1)
        twice = (ordered[..., 1:] == ordered[..., :-1]) & (ordered[..., 1:] >= 0)
        found = picked(indices)
        valid = jnp.all(indices < count) & ~jnp.any(twice)
        valid &= jnp.all(jnp.sum(indices < 0, axis=-1) == jnp.sum(exact < 0, axis=-1))
        valid &= jnp.all(jnp.where(finite, jnp.isfinite(found), found == right))
        error = jnp.max(jnp.where(finite, jnp.abs(found - right), 0.0)) / top
        return jnp.where(valid, error, jnp.inf)

    errors = jnp.stack([missed(indices) for indices in (x, plain)])
    return jnp.stack([errors, errors], axis=1)


def _bits(x: Array) -> Array:
    if not jnp.issubdtype(x.dtype, jnp.inexact):
        return x
    return jax.lax.bitcast_convert_type(x, jnp.dtype(f"uint{8 * x.dtype.itemsize}"))
