"""One ``custom_vjp`` for all kernels: forward and backward are chosen apart, and exchange the op's own residuals."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float

from attn_tune.kernels import dispatch
from attn_tune.kernels.arguments import dims_of
from attn_tune.kernels.cached import cached
from attn_tune.kernels.deferred import as_varying, deferred, varying_axes
from attn_tune.kernels.flash_attention.derivatives import without_derivative
from attn_tune.kernels.flash_attention.folding import fold_vmap
from attn_tune.kernels.flash_attention.operands import BackwardInputs, Operands, Residuals
from attn_tune.kernels.flash_attention.problem import NAME, Problem
from attn_tune.kernels.flash_attention.sharding import explicit_mesh, sharded_run
from attn_tune.kernels.flash_attention.shards import (
    DIMS,
    MAIN,
    extent_of,
    output_types,
    run_shard,
)
from attn_tune.kernels.marker import cut_name, marked, named_jit
from attn_tune.kernels.parallel import Axes, is_partitioned
from attn_tune.kernels.partitioned import partitioned
from attn_tune.kernels.spec import load
from attn_tune.runtime.layers import current_view, viewing
from attn_tune.runtime.view import View

OUT_NAME = "flash_attention_out"
LSE_NAME = "flash_attention_lse"


@dataclass(frozen=True, kw_only=True)
class Request:
    """What the caller insists on: by direction, a kernel and a config; what is absent is free."""

    kernels: Mapping[str, str] = field(default_factory=dict)
    configs: Mapping[str, Any] = field(default_factory=dict)

    def __hash__(self) -> int:
        return hash((frozenset(self.kernels.items()), frozenset(self.configs.items())))


def attend(
    problem: Problem, operands: Operands, request: Request = Request()
) -> tuple[Float[Array, "B T N V"], Float[Array, "B N T"] | None]:
    """Attention of normalised operands: ``(out, lse)``, differentiable in q, k, v, bias and sinks.

    Without ``problem.needs_lse`` the lse is None, and is only computed where a derivative is taken.

    ``problem`` gives the flags; its shapes are taken from ``operands``, so that a shard or a folded batch is looked
    up as what it is. The residuals carry the names ``OUT_NAME`` and ``LSE_NAME`` for ``jax.checkpoint`` policies.

    Raises:
      UnsupportedError: no kernel, or not the requested one, can do the problem on this device.
    """

    with_lse = dataclasses.replace(problem, needs_lse=True)

    @jax.custom_vjp
    def call(operands: Operands):
        return _forward(problem, request, operands)

    def forward(operands: Operands):
        out, lse = _forward(with_lse, request, operands)
        out, lse = checkpoint_name(out, OUT_NAME), checkpoint_name(lse, LSE_NAME)
        return (out, lse if problem.needs_lse else None), (operands, Residuals(out, lse))

    def backward(saved, cotangents):
        operands, residuals = saved
        dout, dlse = cotangents
        return (_backward(with_lse, request, operands, residuals, dout, dlse),)

    call.defvjp(forward, backward)
    return call(as_varying(operands))


def _forward(problem: Problem, request: Request, operands: Operands):
    run = without_derivative(fold_vmap(lambda args: _run(problem, request, "fwd", args)))
    result = run(operands)
    return result["out"], result["lse"] if problem.needs_lse else None


def _backward(
    problem: Problem, request: Request, operands: Operands, residuals: Residuals, dout, dlse
):
    delta = row_delta(residuals, dout, dlse)
    run = without_derivative(fold_vmap(lambda args: _run(problem, request, "bwd", args)))
    grads = run(BackwardInputs(operands, residuals, dout, delta))
    dsinks = None
    if operands.sinks is not None:
        dsinks = sink_gradient(operands.sinks, residuals.lse, delta)
    return Operands(
        q=grads["dq"],
        k=grads["dk"],
        v=grads["dv"],
        bias=grads.get("dbias"),
        sinks=dsinks,
    )


def row_delta(
    residuals: Residuals, dout: Float[Array, "B T N V"], dlse: Float[Array, "B N T"] | None
) -> Float[Array, "B N T"]:
    """``rowsum(dout * out) - dlse`` in float32; zero for fully masked rows, whatever ``dlse`` holds there.

    ``dlse`` is None where the lse was not returned.
    """
    product = jnp.einsum(
        "btnv,btnv->bnt",
        dout.astype(jnp.float32),
        residuals.out.astype(jnp.float32),
        precision=jax.lax.Precision.HIGHEST,
    )
    if dlse is not None:
        product = product - dlse.astype(jnp.float32)
    return jnp.where(jnp.isneginf(residuals.lse), 0.0, product)


def sink_gradient(
    sinks: Float[Array, " N"], lse: Float[Array, "B N T"], delta: Float[Array, "B N T"]
) -> Float[Array, " N"]:
    """The gradient of the sink logits: a sink is a key whose value is zero, so its ``dp`` is zero too."""
    weight = jnp.where(jnp.isneginf(lse), 0.0, jnp.exp(sinks[None, :, None] - lse))
    return -jnp.sum(weight * delta, axis=(0, 2)).astype(sinks.dtype)


def _run(problem: Problem, request: Request, direction: str, inputs: Any) -> dict[str, Array]:
    """Run one direction, on one device or on each of several.

    Under a ``shard_map`` that checks types, the kernel is traced at lowering, because most kernels do not declare over
    which axes their outputs vary. If XLA partitions the program, each device's part is looked up while XLA compiles,
    in the packs that are active now.
    """
    problem = with_shapes(problem, _operands(inputs))
    if varying_axes(inputs):
        return _in_manual(_launch(problem, request, direction), problem)(inputs)
    if explicit_mesh(inputs) is not None:
        # The arrays of the call are cut already (``sharded_by_types``); this is the folded axis of a vmap.
        def on_shard(inputs: Any, axes: Axes, out_specs: Any) -> dict[str, Array]:
            return run_shard(
                lambda x: _run(problem, request, direction, x), inputs, axes, out_specs
            )

        return sharded_run(on_shard, problem, inputs, output_types(problem, inputs))
    partitions = is_partitioned(inputs)
    if partitions is False:
        return _outputs(_launch(problem, request, direction), problem, inputs)
    return _in_automatic(problem, request, direction, current_view(), bool(partitions))(inputs)


def _operands(inputs: Any) -> Operands:
    return inputs.operands if isinstance(inputs, BackwardInputs) else inputs


def _launch(problem: Problem, request: Request, direction: str) -> Callable[[Any], dict]:
    choice = dispatch.choose(
        NAME,
        direction,
        problem,
        kernel=request.kernels.get(direction),
        config=request.configs.get(direction),
    )
    call: Callable = load(choice.spec.searches[direction].call)
    return marked(call, problem, choice.config, choice.answer.signature, direction)


def _outputs(launch: Callable[[Any], dict], problem: Problem, inputs: Any) -> dict[str, Array]:
    """The outputs that the op needs; a kernel may return more."""
    outputs = launch(inputs)
    return {name: outputs[name] for name in output_types(problem, inputs)}


@cached
def _in_manual(launch: Callable, problem: Problem) -> Callable[[Any], dict[str, Array]]:
    def run(inputs: Any) -> dict[str, Array]:
        wanted = functools.partial(_outputs, launch, problem)
        return deferred(wanted, output_types(problem, inputs))(inputs)

    return named_jit(run, launch.__name__)


@cached
def _in_automatic(
    problem: Problem, request: Request, direction: str, view: View, is_certain: bool
) -> Callable[[Any], dict[str, Array]]:
    def here(inputs: Any) -> dict[str, Array]:
        local = with_shapes(problem, _operands(inputs))
        return _outputs(_launch(local, request, direction), local, inputs)

    def on_shard(inputs: Any, axes: Axes, out_specs: Any) -> dict[str, Array]:
        with viewing(view):
            return run_shard(here, inputs, axes, out_specs)

    def run(inputs: Any) -> dict[str, Array]:
        return partitioned(
            # No device runs the whole problem, so a lookup of it would only be a false miss.
            deferred(here, output_types(problem, inputs)) if is_certain else here,
            on_shard,
            inputs,
            op=NAME,
            dims=DIMS,
            extent=extent_of(problem),
            main=MAIN,
        )

    return named_jit(run, cut_name(problem.signature.text, direction, view.digest[-12:]))


def with_shapes(problem: Problem, operands: Operands) -> Problem:
    """``problem`` with the sizes that ``operands`` have here."""
    batch, q_len, num_q_heads, head_dim = operands.q.shape
    _, kv_len, num_kv_heads, v_head_dim = operands.v.shape
    return dataclasses.replace(
        problem,
        batch=batch,
        q_len=q_len,
        kv_len=kv_len,
        num_q_heads=num_q_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        v_head_dim=v_head_dim,
        mask_dims=dims_of(operands.mask),
        bias_dims=dims_of(operands.bias),
    )
