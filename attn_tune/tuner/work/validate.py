"""Validation: outputs against the reference, twice for each seed, since a race may lose only now and then.

On a GPU or TPU free memory is filled with what is no number before each run. A kernel that leaves a part of an output
unwritten otherwise passes wherever zeros lay there.
"""

import contextlib
import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from attn_tune.ops.contract import Output, Outputs
from attn_tune.schema.trial import OutputError

# More of all arrays together would cost time, and perhaps the memory that the run needs; what is unwritten in large
# outputs shows in smaller problems too.
_MOST_SPOILED_BYTES = 1 << 28


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """One case and seed. Arrays live on the device.

    Attributes:
      inputs: a pytree of arrays for one call. Operands that calls update in place are copied for each.
      reference: the outputs in high precision, and what else the op's rules need (scores).
      baseline: the outputs in the working dtype, done plainly.
      outputs: the outputs that the op declares.
      originals: by output, the operand that it takes over, as it was before the call.
    """

    inputs: Any
    reference: Outputs
    baseline: Outputs
    outputs: tuple[Output, ...]
    originals: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The result of validating one config.

    Attributes:
      errors: the worst error of each output over everything that was run.
      repeatable: equal inputs gave equal bits.
      timed: the sentence that says how many timed runs had other bits; empty where none had.
    """

    errors: tuple[OutputError, ...]
    repeatable: bool = True
    timed: str = ""

    @property
    def correct(self) -> bool:
        """Every output is within what is allowed."""
        return all(error.ratio <= 1.0 for error in self.errors)

    @property
    def remark(self) -> str:
        """The outputs that are wrong, and whether runs differed, as a sentence; empty if there is nothing to say."""
        wrong = [e for e in self.errors if e.ratio > 1.0]
        reasons = [f"{e.output} {_words(e)}" for e in wrong]
        if self.timed:
            reasons.append(self.timed)
        elif not self.repeatable:
            reasons.append("two runs on the same inputs gave different bits")
        return "; ".join(reasons)


def validate(
    call: Callable[[Any], Outputs],
    cases: Iterable[Prepared],
    names: tuple[str, ...] = (),
    keep: Callable[[Outputs], object] | None = None,
) -> Verdict:
    """Run ``call`` twice on each of ``cases`` and compare both runs with the reference.

    Args:
      call: leaves the inputs as they are; it is called several times on the same ones.
      names: the outputs that must be there; empty for all that are not optional.
      keep: is given the outputs of the very first run.
    """
    verdicts = []
    for number, case in enumerate(cases):
        spoil_free_memory(case.baseline)
        first = call(case.inputs)
        if keep is not None and number == 0:
            keep(first)
        verdicts.append(Verdict(errors=judge(first, case, names)))
        spoil_free_memory(case.baseline)
        second = call(case.inputs)
        if not same_bits(first, [second])[0]:
            again = judge(second, case, names)
            verdicts.append(Verdict(errors=again, repeatable=False))
    return worst_of(verdicts)


def spoil_free_memory(like: Outputs) -> None:
    """Fill free memory of the device: an array like each of ``like``, and one of twice their elements in float32.

    Allocators give the next call's outputs and scratch memory the places of equal size that were freed last. 256 MiB in
    all are filled: of larger arrays no more than a part. On a CPU nothing is done: kernels there are XLA's own or
    interpreted.
    """
    import jax
    import jax.numpy as jnp

    if jax.default_backend() == "cpu":
        return
    wanted = [(x.shape, x.dtype) for x in like.values()]
    wanted.append(((2 * sum(math.prod(shape) for shape, _ in wanted),), jnp.dtype(jnp.float32)))
    left, filled = _MOST_SPOILED_BYTES, []
    # Without the memory there is none to be spoiled; the run itself may still have enough.
    with contextlib.suppress(jax.errors.JaxRuntimeError):
        for shape, dtype in wanted:
            size = math.prod(shape) * dtype.itemsize
            if size > left:
                shape = (left // dtype.itemsize,)
            left -= min(size, left)
            filled.append(jnp.full(shape, _no_number(dtype), dtype))
        jax.block_until_ready(filled)


def _no_number(dtype: Any) -> Any:
    import jax.numpy as jnp

    if not jnp.issubdtype(dtype, jnp.inexact):
        return True if dtype == jnp.bool_ else jnp.iinfo(dtype).max
    return jnp.nan if jnp.isnan(jnp.asarray(jnp.nan, dtype)) else jnp.finfo(dtype).max


def compile_judgement(
    reference: Mapping[str, Any], baseline: Mapping[str, Any], declared: Sequence[Output], originals: Mapping[str, Any]
) -> None:
    """Compile what ``validate`` runs on the outputs of one case, given by shapes, so that it finds it compiled."""
    import jax

    from attn_tune.ops.tolerance import compile_comparison
    from attn_tune.ops.typed_jax import compile_for

    names = (output.name for output in declared)
    outputs = {n: jax.ShapeDtypeStruct(reference[n].shape, baseline[n].dtype) for n in names if n in baseline}
    compile_comparison(outputs, reference, baseline, declared, originals)
    compile_for(_same_bits(), outputs, outputs)


def judge(outputs: Outputs, case: Prepared, names: tuple[str, ...]) -> tuple[OutputError, ...]:
    """The error of each output that must be there; one that is missing has an infinite error."""
    from attn_tune.ops.tolerance import compare

    wanted = [o for o in case.outputs if not names or o.name in names]
    missing = [o.name for o in wanted if o.name not in outputs and not o.optional]
    present = {o.name: outputs[o.name] for o in wanted if o.name in outputs}
    errors = compare(present, case.reference, case.baseline, case.outputs, case.originals)
    gone = [OutputError(output=n, error=math.inf, allowed=1.0, mismatch="is missing") for n in missing]
    if not wanted:
        # A part of which nothing is compared would always be right.
        known = f"is no output of the op; known: {', '.join(o.name for o in case.outputs)}"
        gone = [OutputError(output=n, error=math.inf, allowed=1.0, mismatch=known) for n in names]
    return (*errors, *gone)


def _words(error: OutputError) -> str:
    if error.mismatch:
        return error.mismatch
    if math.isfinite(error.error):
        return f"is wrong: error {error.error:.3g}, allowed {error.allowed:.3g}"
    return "is wrong: not finite where the reference is, finite where it is not, or changed where it must stay"


def worst_of(verdicts: Iterable[Verdict]) -> Verdict:
    """One verdict over several runs: each output's error that is nearest to, or furthest past, its limit."""
    worst: dict[str, OutputError] = {}
    repeatable, timed = True, ""
    for verdict in verdicts:
        repeatable &= verdict.repeatable
        timed = timed or verdict.timed
        for error in verdict.errors:
            if error.output not in worst or error.ratio > worst[error.output].ratio:
                worst[error.output] = error
    return Verdict(errors=tuple(worst.values()), repeatable=repeatable, timed=timed)


def same_bits(one: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> list[bool]:
    """For each of the ``others``, whether it has the bits of ``one``, NaN included. Compared on the device."""
    import jax

    alike = [one.keys() == other.keys() for other in others]
    compared = [
        _same_bits()(dict(one), dict(other)) if is_alike else False
        for other, is_alike in zip(others, alike, strict=True)
    ]
    return [bool(found) for found in jax.device_get(compared)]


@functools.cache
def _same_bits() -> Callable[[Outputs, Outputs], Any]:
    import jax
    import jax.numpy as jnp

    def bits(x: Any) -> Any:
        if not jnp.issubdtype(x.dtype, jnp.inexact):
            return x
        return jax.lax.bitcast_convert_type(x, jnp.dtype(f"uint{8 * x.dtype.itemsize}"))

    def same(a: Outputs, b: Outputs) -> Any:
        return jnp.all(jnp.stack([jnp.asarray(True), *(jnp.all(bits(a[n]) == bits(b[n])) for n in a)]))

    return jax.jit(same)
