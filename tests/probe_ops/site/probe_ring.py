"""Sums over keys that lie on several devices: each keeps a part of them, and one sum goes over all devices."""

from dataclasses import dataclass

import probe_common as common

from attn_tune.ops.contract import Axis, Op, Operand, Output

NAME = "probe_ring"
FIELDS = (
    common.exact("d", "devices"),
    common.size("s", "keys of one device"),
    common.exact("h", "width of a key"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem(common.Sizes):
    NAME = NAME
    FIELDS = FIELDS

    d: int
    s: int
    h: int


def operands(problem, direction):
    keys = (problem.d * problem.s, problem.h)
    return (
        Operand(name="q", shape=(problem.h,), dtype="float32"),
        Operand(name="keys", shape=keys, dtype="float32", partition=("ring", None)),
    )


OP = Op(
    name=NAME,
    version=1,
    directions=("fwd",),
    fields=FIELDS,
    problem=Problem,
    outputs=lambda problem, direction: (Output(name="total"),),
    operands=operands,
    flops=lambda p, direction: 4 * p.d * p.s * p.h,
    bytes_moved=lambda p, direction: 4 * p.d * p.s * p.h,
    inputs="probe_ring:make_inputs",
    reference="probe_ring:reference",
    baseline="probe_ring:reference",
    features="probe_ring:features",
    axes=(Axis(field="s"),),
    mesh=lambda problem: {"ring": problem.d},
    summary="a sum over the keys of several devices",
)


def features(problem):
    return tuple(common.small(problem, s=s) for s in (1, 3))


def make_inputs(problem, direction, seed):
    import jax

    keys = jax.random.split(jax.random.key(seed))
    shape = (problem.d * problem.s, problem.h)
    return {
        "q": jax.random.normal(keys[0], (problem.h,)),
        "keys": jax.random.normal(keys[1], shape),
    }


def reference(problem, direction, inputs):
    import jax.numpy as jnp

    weights = jnp.tanh(jnp.matmul(inputs["keys"], inputs["q"], precision="highest"))
    return {"total": jnp.matmul(weights, inputs["keys"], precision="highest")}


def forward(problem, config, inputs):
    import jax
    from jax.sharding import PartitionSpec as P

    def mine(q, keys):
        part = reference(problem, "fwd", {"q": q, "keys": keys})["total"]
        return part if config.defect else jax.lax.psum(part, "ring")

    total = jax.shard_map(mine, in_specs=(P(), P("ring")), out_specs=P(), check_vma=not config.defect)
    return {"total": total(inputs["q"], inputs["keys"])}


_MADE = {"fwd": "forward"}
KERNELS = (
    common.kernel(NAME, __name__, "psum", _MADE),
    common.kernel(NAME, __name__, "broken", _MADE, ("own_part",)),
)
