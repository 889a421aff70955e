"""Rings on eight devices beside dense attention over the whole sequence. A script; its arguments name cases."""

import functools
import json
import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, PartitionSpec as P

import attn_tune
from attn_tune.api.context_parallel.layouts import Layout, from_natural, to_natural

B, T, N, K, H = 2, 32, 4, 2, 8
LENGTHS = np.array([27, 9], np.int32)
DOCUMENTS = np.sort(np.random.default_rng(3).integers(0, 4, (B, T)).astype(np.int32))
# By name: the layout and the arguments. Rings have four devices, beside two that share the batch.
CASES = {
    "zigzag documents with sinks": ("zigzag", {"causal": True, "documents": True, "sinks": True}),
    "zigzag causal window": ("zigzag", {"causal": True, "sliding_window": 5}),
    "zigzag window on both sides": ("zigzag", {"sliding_window": (3, 9), "documents": True}),
    "striped causal window with lengths": ("striped", {"causal": True, "sliding_window": 6, "lengths": LENGTHS}),
    "striped window on both sides": ("striped", {"sliding_window": (3, 6), "documents": True}),
    "contiguous causal with lengths and a cap": (
        "contiguous",
        {"causal": True, "lengths": LENGTHS, "logits_soft_cap": 2.0},
    ),
    "contiguous window on both sides in bfloat16": ("contiguous", {"sliding_window": (9, 2), "dtype": "bfloat16"}),
    "nothing hidden, heads one after the other": ("zigzag", {"chunks": 2, "sinks": True}),
    "ulysses": ("zigzag", {"strategy": "ulysses", "causal": True, "documents": True, "sinks": True, "devices": 2}),
    "all_gather": ("striped", {"strategy": "all_gather", "causal": True, "sliding_window": 9, "documents": True}),
}


def draw(*shapes):
    generator = np.random.default_rng(7)
    return [jnp.asarray(generator.standard_normal(shape, np.float32)) for shape in shapes]


def weighed(attend, weights):
    """``(out, lse)`` of attention and the gradients of a sum that weighs every element differently."""

    def loss(differentiable):
        out, lse = attend(*differentiable)
        return jnp.sum(out * weights[0]) + jnp.sum(jnp.where(jnp.isneginf(lse), 0, lse) * weights[1]), (out, lse)

    return lambda differentiable: jax.value_and_grad(loss, has_aux=True)(differentiable)


@jax.jit
def dense(differentiable, weights, visible, cap):
    def attend(q, k, v, sinks):
        k, v = (jnp.repeat(x, N // K, axis=2) for x in (k, v))
        logits = cap * jnp.tanh(jnp.einsum("btnh,bsnh->bnts", q, k) / H**0.5 / cap)
        logits = jnp.where(visible[:, None], logits, -jnp.inf)
        column = jnp.broadcast_to(sinks[None, :, None, None], (B, N, T, 1))
        every = jnp.concatenate([logits, column], axis=-1)
        some = jnp.any(visible, axis=-1)[:, None] | jnp.isfinite(column[..., 0])
        lse = jax.nn.logsumexp(jnp.where(some[..., None], every, 0), axis=-1)
        weight = jnp.where(some[..., None], jnp.exp(logits - lse[..., None]), 0)
        return jnp.einsum("bnts,bsnv->btnv", weight, v), jnp.where(some, lse, -jnp.inf)

    return weighed(attend, weights)(differentiable)


def visible_pairs(causal=False, sliding_window=None, documents=False, lengths=None, **_):
    distance = np.arange(T)[:, None] - np.arange(T)[None]
    left, right = (sliding_window,) * 2 if isinstance(sliding_window, int) else sliding_window or (T, T)
    visible = (distance <= left) & (distance >= -(0 if causal else right))
    visible = np.broadcast_to(visible, (B, T, T))
    if documents:
        visible = visible & (DOCUMENTS[:, :, None] == DOCUMENTS[:, None])
    if lengths is not None:
        counts = np.arange(T)[None] < lengths[:, None]
        visible = visible & counts[:, :, None] & counts[:, None]
    return visible


def sharded(layout, *, documents=False, sinks=False, lengths=None, devices=4, dtype="float32", **arguments):
    """``(q, k, v, sinks) -> (out, lse)`` in the order of the sequence, over a mesh of eight devices."""
    explicit = layout == "striped"
    kinds = (AxisType.Explicit if explicit else AxisType.Auto,) * 3
    mesh = jax.make_mesh((2, 4 // devices, devices), ("data", "rest", "cp"), axis_types=kinds)
    tokens, kind = P("data", "cp"), Layout(layout)

    def local(q, k, v, aux, ids, lengths):
        return attn_tune.ring_attention(
            *(x.astype(dtype) for x in (q, k, v)),
            aux if sinks else None,
            axis_name="cp",
            layout=layout,
            q_segment_ids=ids if documents else None,
            lengths=lengths,
            return_lse=True,
            **{"strategy": "ring"} | arguments,
        )

    mapped = jax.shard_map(
        local,
        mesh=mesh,
        in_specs=(tokens, tokens, tokens, P(), tokens, P("data")),
        out_specs=(tokens, P("data", None, "cp")),
        # Both kinds of shard_map are taken.
        check_vma=layout != "contiguous",
    )

    def attend(q, k, v, aux):
        arrays = [q, k, v, jnp.asarray(DOCUMENTS)]
        counts = None if lengths is None else jnp.asarray(lengths)
        if explicit:
            arrays = [jax.sharding.reshard(x, jax.NamedSharding(mesh, tokens)) for x in arrays]
            counts = counts if counts is None else jax.sharding.reshard(counts, jax.NamedSharding(mesh, P("data")))
        *arrays, ids = (from_natural(x, 1, devices, kind) for x in arrays)
        out, lse = mapped(*arrays, aux, ids, counts)
        out, lse = to_natural(out, 1, devices, kind), to_natural(lse, 2, devices, kind)
        if explicit:
            out, lse = (jax.sharding.reshard(x, jax.NamedSharding(mesh, P())) for x in (out, lse))
        return out, lse

    return attend


def difference(got, want):
    return max(
        float(np.max(np.where(np.isneginf(a) & np.isneginf(b), 0, np.abs(a - b))))
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True)
    )


def compared(layout, arguments):
    q, k, v, sinks, *weights = draw((B, T, N, H), (B, T, K, H), (B, T, K, H), (N,), (B, T, N, H), (B, N, T))
    sinks = sinks if arguments.get("sinks") else jnp.full(N, -jnp.inf)
    cap = arguments.get("logits_soft_cap", 1e6)
    (_, want), want_grads = dense((q, k, v, sinks), weights, visible_pairs(**arguments), cap)
    attend = sharded(layout, **arguments)
    (_, got), grads = jax.jit(weighed(attend, weights))((q, k, v, sinks))
    return difference((got, grads), (want, want_grads))


def transfers(layout, **arguments):
    """Permutes and gathers in the program of the forward, and in that of the forward with its backward."""
    shapes = [jax.ShapeDtypeStruct((1, 64, heads, H), jnp.bfloat16) for heads in (2, 1, 1)]
    mesh = jax.make_mesh((8,), ("cp",), axis_types=(AxisType.Auto,))
    attend = jax.shard_map(
        functools.partial(attn_tune.ring_attention, axis_name="cp", layout=layout, strategy="ring", **arguments),
        mesh=mesh,
        in_specs=(P(None, "cp"),) * 3,
        out_specs=P(None, "cp"),
    )

    def gradients(q, k, v):
        out, pull = jax.vjp(attend, q, k, v)
        return pull(out)

    found = []
    for function in (attend, gradients):
        text = jax.jit(function).lower(*shapes).as_text()
        found.append([len(re.findall(rf"stablehlo\.{kind}\b", text)) for kind in ("collective_permute", "all_gather")])
    return found


def swapped(layout, strategy="ring", heads=(N, K, K), sinks=None, **mask):
    """Outputs and gradients over two axes in another order than the mesh's, beside those of one device."""
    mesh, tokens = jax.make_mesh((2, 4), ("x", "y"), axis_types=(AxisType.Auto,) * 2), P(None, ("y", "x"))
    arguments = {"axis_name": ("y", "x"), "layout": layout, "strategy": strategy, **mask}
    ring = functools.partial(attn_tune.ring_attention, softmax_aux=sinks, **arguments)
    attend = jax.shard_map(ring, mesh=mesh, in_specs=(tokens,) * 3, out_specs=tokens)

    def results(call, *arrays):
        out, pull = jax.vjp(call, *arrays)
        return out, pull(jnp.cos(out))

    def dealt(*arrays):
        found = results(attend, *(from_natural(x, 1, 8, Layout(layout)) for x in arrays))
        return jax.tree.map(lambda x: to_natural(x, 1, 8, Layout(layout)), found)

    arrays = draw(*((1, T, number, H) for number in heads))
    whole = functools.partial(results, functools.partial(attn_tune.flash_attention, softmax_aux=sinks, **mask))
    return difference(jax.jit(dealt)(*arrays), jax.jit(whole)(*arrays))


def decoded():
    """Decoding over a cache whose tokens lie on eight devices, beside one whole cache."""
    page, per_device = 4, 2
    tokens = 8 * per_device * page
    lengths = np.array([tokens, 13, 0], np.int32)
    q, k, v = draw((3, 4, 16), (3 * tokens // page, page, 2, 16), (3 * tokens // page, page, 2, 16))
    table = np.arange(3 * tokens // page, dtype=np.int32).reshape(3, -1)
    sinks = jnp.array([0.5, -1.0, 2.0, 0.0])
    want = attn_tune.paged_decode(q, k, v, lengths, table, softmax_aux=sinks, return_lse=True)
    # Each device holds consecutive tokens of every sequence, in pages of its own.
    by_device = [x.reshape(3, 8, per_device, page, 2, 16).swapaxes(0, 1).reshape(x.shape) for x in (k, v)]

    def local(q, k, v, lengths):
        rank = jax.lax.axis_index("cp")
        own = jnp.clip(lengths - rank * per_device * page, 0, per_device * page)
        own_table = jnp.arange(3 * per_device, dtype=jnp.int32).reshape(3, per_device)
        aux = jnp.where(rank == 0, sinks, -jnp.inf)
        out, lse = attn_tune.paged_decode(q, k, v, own, own_table, softmax_aux=aux, return_lse=True)
        return attn_tune.merge_over_axis(out, lse, "cp")

    mesh = jax.make_mesh((8,), ("cp",), axis_types=(AxisType.Auto,))
    attend = jax.shard_map(local, mesh=mesh, in_specs=(P(), P("cp"), P("cp"), P()), out_specs=P())
    return difference(jax.jit(attend)(q, *by_device, lengths), want)


def main():
    found: dict = {name: compared(*CASES[name]) for name in sys.argv[1:]}
    found["transfers"] = {
        "zigzag": transfers("zigzag", causal=True),
        "window": transfers("contiguous", causal=True, sliding_window=7),
    }
    found["swapped"] = max(
        swapped("striped", causal=True),
        swapped("zigzag", causal=True, sliding_window=9),
        # Each device has one head, and of the sinks that of its own.
        swapped("zigzag", "ulysses", (8, 8, 8), jnp.linspace(-1, 2, 8), causal=True),
        swapped("striped", "all_gather", causal=True),
    )
    found["decoded"] = decoded()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
