"""A recurrence ``S = exp(g) S + k v^T``, ``o = q S`` whose state comes in and goes out in one buffer."""

from dataclasses import dataclass

import probe_common as common

from attn_tune.ops.contract import (
    Axis,
    Op,
    Operand,
    Output,
    OutputKind,
    Workload,
    workload_field,
)

NAME = "probe_recurrent"
GATES = (
    Workload(name="mild", summary="gates a little below zero"),
    Workload(name="open", summary="no decay at all"),
    Workload(name="reset", summary="one step in seven forgets everything"),
)
FIELDS = (
    common.size("b", "sequences"),
    common.size("t", "steps"),
    common.size("n", "heads"),
    common.exact("k", "rows of the state"),
    common.exact("v", "columns of the state"),
    common.exact("dtype", "dtype of the operands", is_int=False),
    workload_field(GATES),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem(common.Sizes):
    NAME = NAME
    FIELDS = FIELDS

    b: int
    t: int
    n: int
    k: int
    v: int
    dtype: str = "float32"
    workload: str = "mild"


def operands(problem, direction):
    p = problem
    heads = (p.b, p.t, p.n)
    return (
        Operand(name="q", shape=(*heads, p.k), dtype=p.dtype),
        Operand(name="k", shape=(*heads, p.k), dtype=p.dtype),
        Operand(name="v", shape=(*heads, p.v), dtype=p.dtype),
        Operand(name="g", shape=heads, dtype="float32"),
        Operand(name="state", shape=(p.b, p.n, p.k, p.v), dtype="float32", in_place=True),
    )


def features(problem):
    """One step, an odd number of them, every kind of gate."""
    few = common.small(problem, b=2, t=37, n=2)
    return (*(common.small(few, workload=w.name) for w in GATES), common.small(few, t=1))


OP = Op(
    name=NAME,
    version=1,
    directions=("fwd",),
    fields=FIELDS,
    problem=Problem,
    outputs=lambda problem, direction: (
        Output(name="o"),
        Output(name="state", kind=OutputKind.STATE, updates="state"),
    ),
    operands=operands,
    flops=lambda p, direction: 5 * p.b * p.t * p.n * p.k * p.v,
    bytes_moved=lambda p, direction: 4 * p.b * p.n * (p.t * (2 * p.k + 2 * p.v + 1) + 2 * p.k * p.v),
    inputs="probe_recurrent:make_inputs",
    reference="probe_recurrent:reference",
    baseline="probe_recurrent:baseline",
    features="probe_recurrent:features",
    workloads=GATES,
    axes=(Axis(field="b", is_length=False), Axis(field="t")),
    summary="a gated recurrence with its state",
)


def make_inputs(problem, direction, seed):
    import jax
    import jax.numpy as jnp

    p, dtype = problem, jnp.dtype(problem.dtype)
    keys = jax.random.split(jax.random.key(seed), 5)
    heads = (p.b, p.t, p.n)
    g = -0.1 * jax.random.uniform(keys[3], heads)
    if p.workload == "open":
        g = jnp.zeros(heads)
    if p.workload == "reset":
        g = jnp.where(jnp.arange(p.t)[:, None] % 7 == 3, -1e4, g)
    return {
        "q": jax.random.normal(keys[0], (*heads, p.k)).astype(dtype),
        "k": jax.random.normal(keys[1], (*heads, p.k)).astype(dtype) * p.k**-0.5,
        "v": jax.random.normal(keys[2], (*heads, p.v)).astype(dtype),
        "g": g,
        "state": jax.random.normal(keys[4], (p.b, p.n, p.k, p.v)),
    }


def reference(problem, direction, inputs):
    """The sum over all earlier steps, written out: no state is carried."""
    import jax.numpy as jnp

    q, k, v, g = (inputs[name].astype(jnp.float32) for name in "qkvg")
    before = jnp.cumsum(g, axis=1)
    rows = jnp.arange(problem.t)
    # Decay from step s to step t, as a difference that is never positive.
    decay = jnp.minimum(before[:, :, None] - before[:, None], 0.0)
    # Beyond a reset the difference of two large sums is not exact, and is summed separately.
    if problem.workload == "reset":
        g = jnp.where(g < -1e3, -jnp.inf, g)
        spans = (rows[:, None, None] >= rows[None, :, None]) & (rows[None, :, None] > rows[None, None, :])
        hit = jnp.einsum("tus,bun->btsn", (spans & True).astype(jnp.float32), jnp.isinf(g) * 1.0)
        kept = jnp.einsum("tus,bun->btsn", spans.astype(jnp.float32), jnp.where(jnp.isinf(g), 0.0, g))
        decay = jnp.where(hit > 0, -jnp.inf, kept)
        reach = jnp.cumsum(jnp.isinf(g), axis=1) > 0
        before = jnp.where(reach, -jnp.inf, jnp.cumsum(jnp.where(jnp.isinf(g), 0.0, g), axis=1))
    weights = jnp.where((rows[:, None] >= rows)[None, :, :, None], jnp.exp(decay), 0.0)
    scores = jnp.einsum("btnk,bsnk->btsn", q, k, precision="highest") * weights
    out = jnp.einsum("btsn,bsnv->btnv", scores, v, precision="highest")
    start = inputs["state"].astype(jnp.float32)
    out += jnp.exp(before)[..., None] * jnp.einsum("btnk,bnkv->btnv", q, start, precision="highest")
    state = jnp.einsum("bsn,bsnk,bsnv->bnkv", weights[:, -1], k, v, precision="highest")
    return {"o": out, "state": state + jnp.exp(before[:, -1])[..., None, None] * start}


def baseline(problem, direction, inputs):
    return _scan(inputs, 1)


def forward(problem, config, inputs):
    outputs = _scan(inputs, config.step)
    if config.defect == "stale_state":
        # The state before the last step: no other output shows it.
        shorter = {n: x if n == "state" else x[:, :-1] for n, x in inputs.items()}
        outputs["state"] = _scan(shorter, 1)["state"]
    if config.defect == "same_state":
        outputs["state"] = inputs["state"]
    return outputs


def _scan(inputs, unroll):
    import jax
    import jax.numpy as jnp

    def one(state, step):
        q, k, v, g = step
        state = jnp.exp(g)[..., None, None] * state + jnp.einsum("bnk,bnv->bnkv", k, v)
        return state, jnp.einsum("bnk,bnkv->bnv", q, state)

    steps = tuple(jnp.moveaxis(inputs[n].astype(jnp.float32), 1, 0) for n in "qkvg")
    state, out = jax.lax.scan(one, inputs["state"], steps, unroll=unroll)
    return {"o": jnp.moveaxis(out, 0, 1).astype(inputs["q"].dtype), "state": state}


_MADE = {"fwd": "forward"}
KERNELS = (
    common.kernel(NAME, __name__, "scan", _MADE),
    common.kernel(NAME, __name__, "broken", _MADE, ("stale_state", "same_state")),
)
