"""Run by test_sharding.py on eight virtual devices: sharded calls against whole ones. Prints one JSON object."""

import json

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

from attn_tune.api.flash_attention import create_shard_map_wrapper, flash_attention
from attn_tune.ops.masks.mask_info import MaskInfo
from attn_tune.schema.errors import UnsupportedError, UsageError

B, T, S, N, K, H = 4, 6, 9, 4, 2, 8
MESH = Mesh(np.array(jax.devices()).reshape(4, 2), ("data", "model"))
SPECS = (P("data", None, "model", None),) * 3


def draw(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape, np.float32))


def arrays(kv_heads=K):
    return draw(1, B, T, N, H), draw(2, B, S, kv_heads, H), draw(3, B, S, kv_heads, H)


def difference(values, specs, **arguments):
    """The largest difference of output and gradients between a sharded and a whole call."""
    weight = draw(7, B, T, N, H)
    names = ("query", "key", "value", "bias", "softmax_aux")[: len(values)]

    def loss(*values, **mesh):
        out = flash_attention(**dict(zip(names, values, strict=True)), **arguments, **mesh)
        return jnp.sum(out * weight), out

    def run(**mesh):
        every = tuple(range(len(values)))
        return jax.jit(jax.value_and_grad(lambda *v: loss(*v, **mesh), every, has_aux=True))(*values)

    got, want = run(mesh=MESH, in_specs=specs), run()
    return max(float(jnp.abs(a - b).max()) for a, b in zip(*map(jax.tree.leaves, (got, want)), strict=True))


def refusal(values, specs, **arguments):
    try:
        flash_attention(*values, mesh=MESH, in_specs=specs, **arguments)
    except (UsageError, UnsupportedError) as error:
        return f"{type(error).__name__}: {error}"
    return "accepted"


def local_shapes():
    """The problems that sharded calls are looked up as."""
    from attn_tune.runtime.lookup import dispatch

    seen, choose = [], dispatch.choose

    def spy(op, direction, problem, **rest):
        seen.append((problem.batch, problem.num_q_heads, problem.num_kv_heads, problem.bias_dims))
        return choose(op, direction, problem, **rest)

    dispatch.choose = spy
    try:
        function, values = create_shard_map_wrapper(*arrays(), mesh=MESH, in_specs=SPECS, bias=draw(4, 1, N, T, S))
        jax.jit(function).lower(*values)
    finally:
        dispatch.choose = choose
    return seen


def packed_within_some_axes():
    """The worst difference of packed rows, one for each part of one axis of the mesh, from those rows alone."""
    q, k, v = (jnp.asarray(x[:4, :T]) for x in arrays())
    ends = jnp.sort(jnp.asarray(np.random.default_rng(1).integers(0, T + 1, (4, 3), np.int32)), axis=1).at[:, 0].set(0)

    def attend(q, k, v, ends):
        return flash_attention(q, k, v, cum_seqlens_q=ends[0], causal=True)

    whole = jnp.concatenate([attend(*(x[i : i + 1] for x in (q, k, v, ends))) for i in range(4)])
    rows = jax.shard_map(attend, mesh=MESH, in_specs=P("data"), out_specs=P("data"), axis_names={"data"})
    return float(jnp.abs(jax.jit(rows)(q, k, v, ends) - whole).max())


results = {
    "packed": packed_within_some_axes(),
    "everything": difference(
        (*arrays(), draw(4, 1, N, T, S), draw(5, N)),
        SPECS,
        causal=True,
        dropout_prob=0.3,
        dropout_seed=11,
        mask_info=MaskInfo.from_lengths(jnp.array([9, 5, 7, 2]), q_len=T, kv_len=S),
    ),
    "one_kv_head_and_folded_axes": difference(
        arrays(kv_heads=1),
        (P(("data", "model")[:1], None, "model"), P("data"), P("data")),
        dropout_prob=0.3,
        attention_mask=jnp.asarray(np.random.default_rng(0).random((1, N, 1, S)) < 0.7),
    ),
    "local": local_shapes(),
    "length": refusal(arrays(), (P(None, "model"), P(), P())),
    "head_dim": refusal(arrays(), (P(None, None, None, "model"), P(), P())),
    "kv_heads": refusal(arrays(), (P(None, None, "model"), P(), P())),
    "mesh_axis": refusal(arrays(), (P("nowhere"), P("nowhere"), P("nowhere"))),
    "twice": refusal(arrays(), (P("data", None, "data"), P(), P())),
    "sharding": refusal(arrays(), (NamedSharding(MESH, P()), P(), P())),
    "divide": refusal(arrays(), (P(None, None, "data"),) * 3),
    "out": refusal(arrays(), SPECS, out_specs=P("data")),
}
print(json.dumps(results))
