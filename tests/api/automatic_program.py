"""Run by test_automatic.py on eight virtual devices: calls that are cut, against whole ones. Prints one JSON object."""

import dataclasses
import json
import logging
import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

from attn_tune.api.attention import attention
from attn_tune.api.dot_product import dot_product_attention
from attn_tune.api.flash_attention import flash_attention
from attn_tune.ops.masks.mask_info import MaskInfo
from attn_tune.schema.errors import UsageError
from tests.api import probe_ops
from tests.api.sharded_calls import (
    AUTO,
    BY_HEADS,
    EVERYWHERE,
    EXPLICIT,
    B,
    H,
    K,
    Lookups,
    N,
    S,
    T,
    base,
    call,
    difference,
    draw,
    gathers,
    graded,
    ints,
    mesh_of,
    put,
    whole,
)

# Each has its arrays with how a caller shards them, and the rest of the call.
CASES = {
    "bias_sinks_lengths_dropout_lse": (
        base()
        | {
            "bias": (draw(4, 1, N, T, S), P(None, "model")),
            "softmax_aux": (draw(5, N), P("model")),
            "lengths": (np.array([9, 5, 7, 2], np.int32), P("data")),
        },
        {"causal": True, "dropout_prob": 0.3, "dropout_seed": 11, "return_lse": True},
    ),
    "mask_positions_window_segments_one_kv_head": (
        base(kv_heads=1)
        | {
            "bias": (draw(4, B, 1, 1, S), P("data")),
            "attention_mask": (draw(6, 1, N, T, S) < 1, P(None, "model")),
            "q_positions": (ints(7, 12, B, T), P("data")),
            "kv_positions": (ints(8, 12, B, S), P("data")),
            "q_segment_ids": (ints(9, 2, B, T), P("data")),
            "kv_segment_ids": (ints(10, 2, B, S), P("data")),
        },
        {"causal": True, "sliding_window": (5, None), "logits_soft_cap": 2.0},
    ),
}


def run_case(name):
    arrays, options = CASES[name]
    run = jax.jit(lambda arrays: graded(lambda a: call(a, options), arrays))
    want = run(whole(arrays))
    found = {}
    for way, mesh in (("automatic", AUTO), ("explicit", EXPLICIT)):
        operands = put(arrays, mesh)
        with Lookups() as lookups:
            compiled = run.lower(operands).compile()
        got = compiled(operands)
        is_cut = got[0][1][0].sharding.shard_shape(got[0][1][0].shape) == (1, T, N // 2, H)
        found[way] = [difference(got, want), lookups.shapes, gathers(compiled), is_cut]
    # Each shard of one's own drops weights of its own.
    kept = {key: value for key, value in options.items() if "dropout" not in key}
    specs = {key: spec for key, (_, spec) in arrays.items()}
    outs = (BY_HEADS, P("data", "model")) if "return_lse" in kept else BY_HEADS
    mapped = jax.shard_map(lambda a: call(a, kept), mesh=AUTO, in_specs=(specs,), out_specs=outs)
    if kept != options:
        want = jax.jit(lambda arrays: graded(lambda a: call(a, kept), arrays))(whole(arrays))
    with Lookups() as lookups:
        got = jax.jit(lambda arrays: graded(mapped, arrays))(whole(arrays))
    found["manual"] = [difference(got, want), lookups.shapes]
    return found


def run_layer():
    """A layer of a language model: sharded batch, heads and hidden dims; RMS norm, projections, attention, loss."""
    width = 16
    weights = {
        "q": (draw(1, width, N, H) * 0.2, P(None, "model")),
        "k": (draw(2, width, K, H) * 0.2, P(None, "model")),
        "v": (draw(3, width, K, H) * 0.2, P(None, "model")),
        "o": (draw(4, N, H, width) * 0.2, P("model")),
        "norm": (np.ones(width, np.float32), EVERYWHERE),
    }

    def loss(weights, x):
        x_norm = x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * weights["norm"]
        q, k, v = (jnp.einsum("btd,dnh->btnh", x_norm, weights[name]) for name in "qkv")
        out = flash_attention(q, k, v, causal=True)
        y = x + jnp.einsum("btnh,nhd->btd", out, weights["o"])
        return jnp.mean(jnp.square(y - 1.0)), y

    step = jax.jit(jax.value_and_grad(loss, has_aux=True))
    x = draw(9, B, T, width)
    want = step(whole(weights), jnp.asarray(x))
    operands = put(weights, AUTO), jax.device_put(x, NamedSharding(AUTO, P("data")))
    compiled = step.lower(*operands).compile()
    return [difference(compiled(*operands), want), gathers(compiled)]


def run_shared_heads(kind, **options):
    """Eight query heads over four devices, which share two key/value heads."""
    arrays = base(heads=8)
    options = {"causal": True, "dropout_prob": 0.2, "dropout_seed": 3} | options
    run = jax.jit(lambda arrays: graded(lambda a: call(a, options), arrays))
    want = run(whole(arrays))
    mesh = mesh_of(kind, (2, 4))
    operands = {
        name: jax.device_put(x, NamedSharding(mesh, BY_HEADS if name == "query" else P("data")))
        for name, (x, _) in arrays.items()
    }
    with Lookups() as lookups:
        got = run(operands)
    return [difference(got, want), lookups.shapes]


def run_sharded_length(mesh):
    arrays = base()
    run = jax.jit(lambda arrays: call(arrays, {"causal": True}))
    operands = put(arrays, mesh)
    operands["query"] = jax.device_put(arrays["query"][0], NamedSharding(mesh, P("data", "model")))
    return difference(run(operands), run(whole(arrays)))


def run_mapped(mesh):
    """``vmap`` over an axis that is sharded, and where types say so over one that is not."""
    x = draw(5, 4, B, T, N, H)
    run = jax.jit(jax.vmap(lambda q: flash_attention(q, q, q, causal=True)))
    specs = [P("data", None, None, "model")]
    if mesh is EXPLICIT:
        specs.append(P(None, "data", None, "model"))
    want = run(x)
    return [difference(run(jax.device_put(x, NamedSharding(mesh, spec))), want) for spec in specs]


def run_masks_of_heads():
    """Masks of key heads beside those of query heads, and the means of rows without keys, in an explicit mesh."""
    masks = {
        name: (draw(seed, B, heads, T, S) > 0, P("data", "model")) for name, seed, heads in (("a", 8, K), ("b", 9, N))
    }
    arrays, lengths = base(), jnp.array([0, 3, 5, S])

    def masked(arrays):
        arrays = dict(arrays)
        both = MaskInfo.from_dense(arrays.pop("a")) & MaskInfo.from_dense(arrays.pop("b"))
        return flash_attention(**arrays, mask_info=both)

    def shortened(arrays):
        return dot_product_attention(**arrays, key_value_seq_lengths=lengths)

    found = {}
    for name, run, given in (("masks", masked, arrays | masks), ("lengths", shortened, arrays)):
        want, cut = run(whole(given)), put(given, EXPLICIT)
        with jax.set_mesh(EXPLICIT):
            found[f"set_mesh_{name}"] = difference(jax.jit(run)(cut), want)
    return found


def run_other_ways():
    """Call in other contexts: no jit, shardings given to jit, a mesh, remat, the older partitioner."""
    arrays, options = CASES["bias_sinks_lengths_dropout_lse"]

    def run(arrays):
        return call(arrays, options)

    plain = whole(arrays)
    want = jax.jit(run)(plain)
    numbers = {name: x for name, (x, _) in arrays.items()}
    shardings = {name: NamedSharding(AUTO, spec) for name, (_, spec) in arrays.items()}
    found = {"no_jit": difference(run(put(arrays, AUTO)), want)}
    found["in_shardings"] = difference(jax.jit(run, in_shardings=(shardings,))(numbers), want)
    with jax.set_mesh(EXPLICIT):
        found["set_mesh_numpy"] = difference(jax.jit(run)(numbers), want)
    found |= run_masks_of_heads()
    found["explicit_no_jit"] = difference(call(put(arrays, EXPLICIT), options), want)
    mesh = {"mesh": EXPLICIT, "in_specs": (BY_HEADS,) * 3}
    found["mesh_numpy"] = difference(call(numbers, options | mesh), want)
    saved = jax.checkpoint_policies.save_only_these_names("flash_attention_out", "flash_attention_lse")
    again = jax.checkpoint(lambda a: call(a, options), policy=saved)
    for name, where in (("automatic", AUTO), ("explicit", EXPLICIT)):
        text = jax.jit(lambda a: graded(again, a)).lower(put(arrays, where)).as_text()
        # The forward is called once: its results are saved, not computed again.
        found[f"remat_{name}"] = len(re.findall(r"call @attn_tune\.flash\w+\.v1\.fwd", text))
    unnormalised = {"normalize_output": False}
    arrays = base() | {"softmax_aux": (draw(5, N), P("model"))}
    run = jax.jit(lambda arrays: call(arrays, unnormalised))
    want = run(whole(arrays))
    for name, where in (("automatic", AUTO), ("explicit", EXPLICIT)):
        found[f"unnormalised_{name}"] = difference(run(put(arrays, where)), want)
    specs = {key: spec for key, (_, spec) in arrays.items()}
    mapped = jax.shard_map(lambda a: call(a, unnormalised), mesh=AUTO, in_specs=(specs,), out_specs=BY_HEADS)
    found["unnormalised_manual"] = difference(jax.jit(mapped)(put(arrays, AUTO)), want)
    return found


def run_packs():
    """The config of a shard comes from the overrides that were active when the call was traced."""
    from attn_tune.packs.override_entries import Entry
    from attn_tune.packs.override_files import OverridesFile
    from attn_tune.runtime.active.layers import in_force

    config = {"chunk_k": 3, "chunk_q": 2}
    entry = Entry(op="flash_attention", direction="fwd", kernel="xla", config=config)
    arrays = put(base(), AUTO)
    function = jax.jit(lambda a: call(a, {}))
    with in_force(OverridesFile(entries=(entry,))):
        lowered = function.lower(arrays)
        overridden = lowered.as_text()
    with Lookups() as lookups:
        lowered.compile()
    chunks = [choice.config.chunk_q for _, choice in lookups.seen]
    return [chunks, overridden == function.lower(arrays).as_text()]


def run_dense():
    """The dense op: its shapes of shards, with a bias; in a shard_map; and with dropout, which is not cut."""
    arrays = base() | {"bias": (draw(4, 1, N, T, S), P(None, "model"))}
    options = {"causal": True, "dtype": jnp.float32}
    run = jax.jit(lambda arrays: graded(lambda a: attention(**a, **options), arrays))
    want = run(whole(arrays))
    found = {}
    for way, mesh in (("automatic", AUTO), ("explicit", EXPLICIT)):
        operands = put(arrays, mesh)
        with Lookups() as lookups:
            compiled = run.lower(operands).compile()
        got = compiled(operands)
        out, weights = got[0][1]
        is_cut = [x.sharding.shard_shape(x.shape) for x in (out, weights)]
        is_cut = is_cut == [(1, T, N // 2, H), (1, N // 2, T, S)]
        found[way] = [difference(got, want), lookups.shapes, gathers(compiled), is_cut]
    specs = {"mesh": AUTO, "in_specs": (BY_HEADS,) * 3, "out_specs": BY_HEADS}
    with Lookups() as lookups:
        got = jax.jit(lambda a: graded(lambda a: attention(**a, **options, **specs), a))(whole(arrays))
    found["mesh"] = [difference(got, want), lookups.shapes, 0, True]
    return found


def run_dense_dropout():
    """The dense op drops the same weights wherever its operands are, and in a shard_map runs at all."""
    arrays = base()
    options = {"dtype": jnp.float32, "dropout_prob": 0.3, "deterministic": False}

    def run(arrays, key):
        return graded(lambda a: attention(**a, dropout_rng=key, **options), arrays)

    key = jax.random.key(3)
    want = jax.jit(run)(whole(arrays), key)
    found = {"automatic": difference(jax.jit(run)(put(arrays, AUTO), key), want)}
    specs = {name: spec for name, (_, spec) in arrays.items()}
    mapped = jax.shard_map(lambda a, key: run(a, key)[1], mesh=AUTO, in_specs=(specs, P()), out_specs=specs)
    grads = jax.jit(mapped)(put(arrays, AUTO), key)
    found["manual"] = 0.0 if all(jnp.isfinite(x).all() for x in grads.values()) else 1.0
    return found


def run_probe():
    """An op that is not attention: its rows stay cut, and the gradient of what they share is the sum of all shards."""
    rows, weight = draw(1, 8, 6), draw(2, 6)
    with pytest.MonkeyPatch.context() as patch:
        probe_ops.register(patch)

        def run(arrays):
            return jax.value_and_grad(lambda a: jnp.sum(jnp.sin(probe_ops.scale_rows(a["x"], a["weight"]))))(arrays)

        want = jax.jit(run)({"x": jnp.asarray(rows), "weight": jnp.asarray(weight)})
        found = {}
        for way, mesh in (("automatic", AUTO), ("explicit", EXPLICIT)):
            arrays = put({"x": (rows, P("data")), "weight": (weight, P())}, mesh)
            probe_ops.LAUNCHES.clear()
            compiled = jax.jit(run).lower(arrays).compile()
            got = compiled(arrays)
            shapes = sorted({rows for _, rows, _ in probe_ops.LAUNCHES})
            is_cut = got[1]["x"].sharding.shard_shape(rows.shape) == (2, 6)
            found[way] = [difference(got, want), shapes, gathers(compiled), is_cut]
            pair = put({"x": (rows, P("data")), "y": (rows, P("data"))}, mesh)
            probe_ops.LAUNCHES.clear()
            total = jax.jit(lambda a: probe_ops.pair_total(a["x"], a["y"]))(pair)
            shapes = sorted({rows for _, rows, _ in probe_ops.LAUNCHES})
            found[f"{way}_total"] = [difference(total, (rows * rows).sum()), shapes]
        unsummed = dataclasses.replace(probe_ops.TOTAL, sums=())
        try:
            probe_ops.pair_total(pair["x"], pair["y"], unsummed)
        except UsageError as error:
            found["unsummed"] = str(error)
    return found


def run_modes():
    """The differences of a gradient under JAX's modes for debugging, of operands on one of several devices."""
    q, k, v = (jax.random.normal(jax.random.key(i), (2, 16, 2, 8)) for i in range(3))
    gradient = jax.grad(lambda *x: flash_attention(*x, causal=True).sum(), (0, 1, 2))
    want, found = gradient(q, k, v), {}
    for name, mode in {"disable_jit": jax.disable_jit, "checking_leaks": jax.checking_leaks}.items():
        with mode():
            found[name] = max(map(difference, gradient(q, k, v), want))
    return found


def main():
    warnings = []
    handler = logging.Handler()
    handler.emit = lambda record: warnings.append(record.getMessage())
    logging.getLogger("attn_tune").addHandler(handler)
    results = {"cases": {name: run_case(name) for name in CASES}, "layer": run_layer()}
    results["quiet"] = list(warnings)
    kinds = {"automatic": AUTO, "explicit": EXPLICIT}
    results["shared_heads"] = {
        "automatic": run_shared_heads(AxisType.Auto),
        "explicit": run_shared_heads(AxisType.Explicit),
        "unnormalised": run_shared_heads(AxisType.Auto, normalize_output=False),
    }
    results["length"] = {name: run_sharded_length(mesh) for name, mesh in kinds.items()}
    results["warnings"] = list(warnings)
    results["mapped"] = {name: run_mapped(mesh) for name, mesh in kinds.items()}
    results["other"] = run_other_ways()
    results["packs"] = run_packs()
    results["dense"] = run_dense()
    results["dense_dropout"] = run_dense_dropout()
    results["probe"] = run_probe()
    results["modes"] = run_modes()
    jax.config.update("jax_use_shardy_partitioner", False)
    results["gspmd"] = run_layer()
    print(json.dumps(results))


if __name__ == "__main__":
    sys.exit(main())
