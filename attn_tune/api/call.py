"""The one call path of every op: choose, mark, run; with gradients, ``vmap``, meshes and the caller's own choice.

An op's public function checks its arguments, makes a problem and operands of them, and calls ``run`` with the op's
``Call``. Forward and backward are chosen apart, and exchange the residuals that the op declares. The choice is made at
trace time and never tunes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import AbstractMesh, Mesh, PartitionSpec
from jaxtyping import Array

from attn_tune.api.declaration import Call
from attn_tune.api.direction import launched
from attn_tune.api.meshes.deferred import as_varying
from attn_tune.api.meshes.sharding import Inputs, sharded, sharded_by_types
from attn_tune.api.request import Platform, Request, request_of
from attn_tune.runtime.active.layers import in_open_blocks
from attn_tune.schema.errors import UsageError, shown

type Outputs = dict[str, Array]
# ``(problem, operands, extra, outputs) -> outputs``
type Finish = Callable[[Any, Any, Mapping[str, Array], Outputs], Outputs]


def run(
    call: Call,
    problem: Any,
    operands: Any,
    *,
    platform: Platform = None,
    cfg: Any = None,
    mesh: Mesh | None = None,
    in_specs: Sequence[PartitionSpec | None] | None = None,
    out_specs: PartitionSpec | None = None,
    extra: Mapping[str, Array] | None = None,
    finish: Finish | None = None,
) -> Outputs:
    """The outputs of one call of an op, by name.

    Args:
      problem: gives the flags; its sizes are those of ``operands``.
      platform: the kernel for every direction: its name or its backend; None or ``"auto"`` chooses. Or a mapping from
        directions to these.
      cfg: a config dataclass, or a mapping from directions to configs; used as it is.
      mesh: run under ``shard_map``; needs ``in_specs``.
      in_specs: starts with the specs of the main operands; those of everything else follow from them.
      out_specs: the spec of the first output.
      extra: arrays that ``finish`` reads, by names that have letters in ``call``.
      finish: plain JAX on the outputs, run on each shard; a function of a module, and the outputs keep their types.

    Raises:
      UsageError: ``platform``, ``cfg`` or a partition spec is malformed.
      UnsupportedError: no kernel, or not the requested one, can do this here; or a derivative that it does not have.
    """
    bound = _Bound(call, problem, request_of(call.op, platform, cfg), finish)
    inputs = Inputs(operands, dict(extra or {}))
    if mesh is None and in_specs is None and out_specs is None:
        return sharded_by_types(call, bound, problem, inputs)
    if mesh is None or in_specs is None:
        missing = "mesh" if mesh is None else "in_specs"
        raise UsageError(f"{missing} is missing: a sharded call needs both mesh and in_specs")
    if not isinstance(mesh, Mesh | AbstractMesh):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"mesh must be a jax.sharding.Mesh, got {shown(mesh)}")
    return sharded(call, bound, problem, inputs, mesh=mesh, in_specs=in_specs, out_specs=out_specs)


@dataclass(frozen=True)
class _Bound:
    """A call without its arrays, equal to any other of the same."""

    call: Call
    problem: Any
    request: Request
    finish: Finish | None

    def __call__(self, inputs: Inputs) -> Outputs:
        outputs = differentiable(self.call, self.problem, inputs.operands, self.request)
        if self.finish is None:
            return outputs
        return self.finish(self.problem, inputs.operands, inputs.extra, outputs)


def differentiable(call: Call, problem: Any, operands: Any, request: Request) -> Outputs:
    """The outputs of one call on one device or shard, with the op's own backward as its derivative.

    Outputs that only the backward reads are computed where a derivative is taken.
    """
    if call.backward_inputs is None:
        return launched(call, problem, request, call.forward, as_varying(operands))
    saving = call.with_residuals(problem)

    @jax.custom_vjp
    def function(operands: Any) -> Outputs:
        return launched(call, problem, request, call.forward, operands)

    def forward(operands: Any) -> tuple[Outputs, Any]:
        outputs = launched(call, saving, request, call.forward, operands)
        kept = {name: checkpoint_name(outputs[name], f"{call.op}_{name}") for name in call.residuals}
        results = outputs | kept
        return {name: results[name] for name in call.outputs(problem, operands)}, (operands, kept)

    def backward(saved: Any, cotangents: Outputs) -> tuple[Any]:
        operands, kept = saved
        inputs = call.backward_inputs(operands, kept, cotangents)  # type: ignore[misc]
        made = launched(call, saving, request, call.backward, inputs)
        gradients = made | call.more_gradients(inputs)
        return (operands._replace(**{name: gradients.get(name) for name in operands._fields}),)

    function.defvjp(in_open_blocks(forward), in_open_blocks(backward))
    return function(as_varying(operands))
