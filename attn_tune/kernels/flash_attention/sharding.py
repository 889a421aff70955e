"""A call over a device mesh: ``shard_map`` over batch and heads, so that each shard is looked up as what it is."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array

from attn_tune.kernels.flash_attention.core import Request, attend
from attn_tune.kernels.flash_attention.operands import Operands
from attn_tune.kernels.flash_attention.problem import Problem
from attn_tune.schema.errors import UnsupportedError, UsageError


def sharded(
    problem: Problem,
    operands: Operands,
    request: Request,
    *,
    mesh: Mesh,
    in_specs: Sequence[PartitionSpec | None],
    out_specs: PartitionSpec | None = None,
) -> Callable[[Operands], tuple[Array, Array | None]]:
    """A function of ``operands`` that gives ``(out, lse)``, with each operand under its spec.

    ``in_specs`` starts with the specs of query, key and value; those of everything else follow from them. The
    dropout words are moved by each shard's place, so that it drops the weights that the whole call would drop.

    Raises:
      UsageError: specs that do not fit the arrays, the mesh or one another.
      UnsupportedError: a sharded length or head dim, or key/value heads sharded differently from query heads.
    """
    batch_axis, head_axis, kv_head_axis = _axes(problem, mesh, in_specs)
    out_spec = PartitionSpec(batch_axis, None, head_axis, None)
    if out_specs is not None and _padded(out_specs, "out_specs") != tuple(out_spec):
        raise UsageError(f"out_specs must be that of the query, {out_spec}, got {out_specs}")
    specs = operand_specs(operands, batch_axis, head_axis, kv_head_axis)

    def local(operands: Operands):
        if operands.dropout is not None:
            operands = operands._replace(dropout=_shifted(operands, batch_axis, head_axis))
        return attend(problem, operands, request)

    return jax.shard_map(
        local,
        mesh=mesh,
        in_specs=(specs,),
        out_specs=(out_spec, PartitionSpec(batch_axis, head_axis, None)),
        # The transpose of shard_map then adds up the gradients of what is replicated (bias, sinks, single KV heads).
        check_vma=False,
    )


def operand_specs(
    operands: Operands, batch_axis: Any, head_axis: Any, kv_head_axis: Any
) -> Operands:
    """The partition spec of each operand that is there; axes of size 1 stay whole."""
    kv = PartitionSpec(batch_axis, None, kv_head_axis, None)
    rows = PartitionSpec(batch_axis, None)

    def pairs(array: Array | None) -> PartitionSpec | None:
        if array is None:
            return None
        batch, heads = array.shape[:2]
        return PartitionSpec(
            batch_axis if batch > 1 else None, head_axis if heads > 1 else None, None, None
        )

    def given(array: Array | None, spec: PartitionSpec) -> PartitionSpec | None:
        return None if array is None else spec

    return Operands(
        q=PartitionSpec(batch_axis, None, head_axis, None),  # type: ignore[arg-type]
        k=kv,  # type: ignore[arg-type]
        v=kv,  # type: ignore[arg-type]
        bias=pairs(operands.bias),  # type: ignore[arg-type]
        mask=pairs(operands.mask),  # type: ignore[arg-type]
        q_segments=given(operands.q_segments, rows),  # type: ignore[arg-type]
        kv_segments=given(operands.kv_segments, rows),  # type: ignore[arg-type]
        q_positions=given(operands.q_positions, rows),  # type: ignore[arg-type]
        kv_positions=given(operands.kv_positions, rows),  # type: ignore[arg-type]
        sinks=given(operands.sinks, PartitionSpec(head_axis)),  # type: ignore[arg-type]
        dropout=given(operands.dropout, PartitionSpec(None)),  # type: ignore[arg-type]
        kv_lengths=given(operands.kv_lengths, PartitionSpec(batch_axis)),  # type: ignore[arg-type]
    )


def _axes(
    problem: Problem, mesh: Mesh, in_specs: Sequence[PartitionSpec | None]
) -> tuple[Any, Any, Any]:
    if isinstance(in_specs, PartitionSpec):
        in_specs = (in_specs,) * 3
    if len(in_specs) < 3:
        raise UsageError(
            f"in_specs must start with those of query, key and value, got {len(in_specs)}"
        )
    query, key, value = (
        _padded(spec, f"in_specs[{i}]") for i, spec in enumerate(tuple(in_specs)[:3])
    )
    for name, spec in (("query", query), ("key", key), ("value", value)):
        if spec[1] is not None:
            raise UnsupportedError(
                f"{name} is sharded along its length ({spec[1]!r}); that needs ring attention, which this op is not"
            )
        if spec[3] is not None:
            raise UnsupportedError(
                f"{name} is sharded along its head dim ({spec[3]!r}); shard heads instead"
            )
    if key != value or query[0] != key[0]:
        raise UsageError(
            f"key and value must share one spec, and the query's batch axis, got {tuple(in_specs)[:3]}"
        )
    # Without its own share of key/value heads a shard would count its groups from the wrong head.
    if query[2] != key[2] and not (key[2] is None and problem.num_kv_heads == 1):
        raise UnsupportedError(
            f"query heads are sharded along {query[2]!r} and key/value heads along {key[2]!r}; they must be the same "
            "(only a single key/value head may stay whole)"
        )
    for axis, size, what in (
        (query[0], problem.batch, "batch"),
        (query[2], problem.num_q_heads, "query heads"),
        (key[2], problem.num_kv_heads, "key/value heads"),
    ):
        parts = _axis_size(mesh, axis)
        if size % parts:
            raise UsageError(
                f"{what} ({size}) cannot be split {parts} ways along mesh axis {axis!r}"
            )
    return query[0], query[2], key[2]


def _padded(spec: PartitionSpec | None, name: str) -> tuple[Any, ...]:
    entries = () if spec is None else tuple(spec)
    if len(entries) > 4:
        raise UsageError(f"{name} has {len(entries)} axes, the array has 4")
    return entries + (None,) * (4 - len(entries))


def _names(axis: Any) -> tuple[str, ...]:
    if axis is None:
        return ()
    return axis if isinstance(axis, tuple) else (axis,)


def _axis_size(mesh: Mesh, axis: Any) -> int:
    size = 1
    for name in _names(axis):
        if name not in mesh.shape:
            raise UsageError(
                f"mesh has no axis {name!r}; it has {', '.join(map(repr, mesh.shape))}"
            )
        size *= mesh.shape[name]
    return size


def _shifted(operands: Operands, batch_axis: Any, head_axis: Any) -> Array:
    batch, _, heads, _ = operands.q.shape
    first = [jnp.uint32(0)]
    for axis, size in ((batch_axis, batch), (head_axis, heads)):
        index = jax.lax.axis_index(_names(axis)) if _names(axis) else 0
        first.append(jnp.uint32(index * size))
    return operands.dropout + jnp.stack(first)  # type: ignore[operator]
