"""A step of decoding over a paged cache that it updates in place: one new entry a sequence, then attention.

Pages that no sequence uses, and slots behind a sequence's end, hold NaN; the page table's unused entries are -1.
"""

from dataclasses import dataclass

import probe_common as common

from attn_tune.ops.contract import Axis, Op, Operand, Output, workload_field
from attn_tune.ops.workloads import LENGTHS, profile_lengths

NAME = "probe_paged"
FIELDS = (
    common.size("b", "sequences"),
    common.size("s", "capacity of a sequence"),
    common.exact("n", "heads"),
    common.exact("h", "width of an entry"),
    common.exact("page", "entries of a page"),
    common.exact("dtype", "dtype of the cache", is_int=False),
    workload_field(LENGTHS),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem(common.Sizes):
    NAME = NAME
    FIELDS = FIELDS

    b: int
    s: int
    n: int
    h: int
    page: int
    dtype: str = "float32"
    workload: str = "eq"

    @property
    def lengths(self):
        return profile_lengths(self.workload, self.b, self.s)

    @property
    def pages(self):
        return -(-self.s // self.page)


def flops(problem, direction):
    return 4 * problem.n * problem.h * sum(problem.lengths)


def bytes_moved(problem, direction):
    entries = sum(problem.lengths) + problem.b * (1 + 2 * problem.n)
    return entries * problem.h * (4 if problem.dtype == "float32" else 2)


def operands(problem, direction):
    p = problem
    return (
        Operand(name="q", shape=(p.b, p.n, p.h), dtype=p.dtype),
        Operand(name="new", shape=(p.b, p.h), dtype=p.dtype),
        Operand(name="cache", shape=(p.b * p.pages + 1, p.page, p.h), dtype=p.dtype, in_place=True),
        Operand(name="table", shape=(p.b, p.pages), dtype="int32"),
        Operand(name="lengths", shape=(p.b,), dtype="int32"),
    )


def features(problem):
    """Sequences of one entry, of a page exactly, of a page and one; every profile of lengths."""
    sizes = {"b": 3, "page": min(problem.page, 4)}
    odd = common.small(problem, **sizes, s=4 * sizes["page"] + 1)
    return (
        *(common.small(odd, workload=w.name) for w in LENGTHS),
        common.small(problem, **sizes, s=1),
        common.small(problem, **sizes, s=sizes["page"]),
    )


OP = Op(
    name=NAME,
    version=1,
    directions=("step",),
    fields=FIELDS,
    problem=Problem,
    outputs=lambda problem, direction: (
        Output(name="o"),
        Output(name="cache", updates="cache"),
    ),
    operands=operands,
    flops=flops,
    bytes_moved=bytes_moved,
    inputs="probe_paged:make_inputs",
    reference="probe_paged:reference",
    baseline="probe_paged:baseline",
    features="probe_paged:features",
    workloads=LENGTHS,
    axes=(Axis(field="b", is_length=False), Axis(field="s")),
    summary="one step of decoding over a paged cache",
)


def make_inputs(problem, direction, seed):
    import jax
    import jax.numpy as jnp

    p, dtype = problem, jnp.dtype(problem.dtype)
    keys = jax.random.split(jax.random.key(seed), 5)
    lengths = jax.random.permutation(keys[0], jnp.asarray(p.lengths, jnp.int32))
    table = jax.random.permutation(keys[1], jnp.arange(p.b * p.pages, dtype=jnp.int32))
    table = table.reshape(p.b, p.pages)
    position = jnp.arange(p.pages * p.page)
    filled = position < lengths[:, None] - 1
    old = jax.random.normal(keys[2], (p.b, p.pages * p.page, p.h)).astype(dtype)
    old = jnp.where(filled[..., None], old, jnp.nan)
    cache = jnp.full((p.b * p.pages + 1, p.page, p.h), jnp.nan, dtype)
    cache = cache.at[table].set(old.reshape(p.b, p.pages, p.page, p.h))
    used = jnp.arange(p.pages) * p.page < lengths[:, None]
    return {
        "q": jax.random.normal(keys[3], (p.b, p.n, p.h)).astype(dtype),
        "new": jax.random.normal(keys[4], (p.b, p.h)).astype(dtype),
        "cache": cache,
        "table": jnp.where(used, table, -1),
        "lengths": lengths,
    }


def reference(problem, direction, inputs):
    """Each sequence's entries put together one after another, in float32."""
    import jax
    import jax.numpy as jnp

    p = problem
    cache = inputs["cache"].astype(jnp.float32)
    rows = []
    for i in range(p.b):
        last = inputs["lengths"][i] - 1
        page = inputs["table"][i, last // p.page]
        cache = jax.lax.dynamic_update_slice(
            cache, inputs["new"][i].astype(jnp.float32)[None, None], (page, last % p.page, 0)
        )
    for i in range(p.b):
        seen = jnp.arange(p.pages * p.page) < inputs["lengths"][i]
        entries = cache[jnp.maximum(inputs["table"][i], 0)].reshape(-1, p.h)
        entries = jnp.where(seen[:, None], entries, 0.0)
        q = inputs["q"][i].astype(jnp.float32) * p.h**-0.5
        logits = jnp.matmul(q, entries.T, precision="highest")
        weights = jax.nn.softmax(jnp.where(seen, logits, -jnp.inf), axis=-1)
        rows.append(jnp.matmul(weights, entries, precision="highest"))
    return {"o": jnp.stack(rows), "cache": cache}


def baseline(problem, direction, inputs):
    return _attend(problem, inputs, 1)


def step(problem, config, inputs):
    outputs = _attend(problem, inputs, min(config.step, problem.b))
    if config.defect == "stray_write":
        # The last page has no owner: no output but the cache shows it.
        outputs["cache"] = outputs["cache"].at[-1, 0, 0].set(0.0)
    if config.defect == "lost_write":
        outputs["cache"] = inputs["cache"]
    return outputs


def _attend(problem, inputs, rows):
    import jax
    import jax.numpy as jnp

    p = problem
    last = inputs["lengths"] - 1
    page = jnp.take_along_axis(inputs["table"], last[:, None] // p.page, axis=1)[:, 0]
    cache = inputs["cache"].at[page, last % p.page].set(inputs["new"])

    def one(arrays):
        q, table, length = arrays
        seen = jnp.arange(p.pages * p.page) < length
        entries = cache[jnp.maximum(table, 0)].reshape(-1, p.h)
        entries = jnp.where(seen[:, None], entries, jnp.zeros((), cache.dtype))
        logits = jnp.einsum("nh,sh->ns", q, entries, preferred_element_type=jnp.float32)
        weights = jax.nn.softmax(jnp.where(seen, logits * p.h**-0.5, -jnp.inf), axis=-1)
        weights = weights.astype(entries.dtype)
        out = jnp.einsum("ns,sh->nh", weights, entries, preferred_element_type=jnp.float32)
        return out.astype(q.dtype)

    arrays = (inputs["q"], inputs["table"], inputs["lengths"])
    return {"o": jax.lax.map(one, arrays, batch_size=rows), "cache": cache}


_MADE = {"step": "step"}
KERNELS = (
    common.kernel(NAME, __name__, "plain", _MADE),
    common.kernel(NAME, __name__, "broken", _MADE, ("stray_write", "lost_write")),
)
