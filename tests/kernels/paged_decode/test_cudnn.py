"""The cuDNN kernel without a GPU: its call, its arrays around a plain library call, its limits, its place."""

import dataclasses
import functools
import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.cudnn import fused_attention_stablehlo as jax_cudnn

import attn_tune
from attn_tune.kernels.lang.libraries.cudnn_paged import paged_call
from attn_tune.kernels.paged_decode.cudnn import SPEC, kernel, limits
from attn_tune.kernels.paged_decode.cudnn.config import Config
from attn_tune.kernels.registry import kernels_of
from attn_tune.ops.paged_decode.features import samples
from attn_tune.ops.paged_decode.inputs import make_inputs
from attn_tune.ops.paged_decode.op import OP
from attn_tune.ops.paged_decode.problem import Problem
from attn_tune.runtime.lookup import dispatch
from attn_tune.schema.device import Device
from tests.chosen import chosen
from tests.kernels.paged_decode.dense_numpy import assert_right

H200 = Device(platform="cuda", family="sm_90", variant="nvidia-h200")
PAGES = {"page_size": 16, "at_edges": True}
# The samples that it does, by name, and what no sample has: a contiguous cache that needs no copy, sinks with queries.
MORE = {
    "contiguous_whole": {"kv_len": 128, "q_len": 2},
    "contiguous_odd": {"kv_len": 33, "has_sinks": True},
    "sinks_queries": {"has_sinks": True, "q_len": 3, **PAGES},
    "head_major_queries": {"layout": "hnd", "q_len": 4, "dtype": "float16", **PAGES},
    "wide": {"head_dim": 256, "v_head_dim": 256, **PAGES},
}


def problem(**changes):
    base = {"batch": 6, "q_len": 1, "kv_len": 77, "num_q_heads": 4, "num_kv_heads": 2, "head_dim": 32}
    base |= {"v_head_dim": changes.get("head_dim", 32), "scale": 32**-0.5}
    return Problem(**base | changes)


@pytest.fixture(autouse=True)
def version(monkeypatch):
    monkeypatch.setattr(limits, "cudnn_version", lambda: (9, 19, 0))


@pytest.fixture
def jax_on_a_hopper(monkeypatch):
    monkeypatch.setattr(jax_cudnn, "check_cudnn_version", lambda: 91900)
    monkeypatch.setattr(jax_cudnn, "check_compute_capability", lambda capability: True)


@functools.cache
def claimed():
    found = samples() | {name: problem(**changes) for name, changes in MORE.items()}
    return {name: p for name, p in found.items() if SPEC.unsupported(p, "fwd", H200) is None}


def cuda_text(function, *arguments):
    return jax.jit(function).trace(*arguments).lower(lowering_platforms=("cuda",)).as_text()


def calls(text):
    """Each custom call of cuDNN as (target, configuration, layouts and types)."""
    found = []
    for line in text.splitlines():
        if match := re.search(r"custom_call @(__cudnn\$\w+)\(", line):
            config = json.loads(re.search(r'backend_config = "(.*?)", ', line)[1].replace("\\22", '"'))
            shape = re.search(r"operand_layouts = (\[.*?\]), result_layouts = (\[.*?\])}?.* : (\(.*)$", line)
            found.append((match[1], config, shape.groups()))
    return found


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("heads_first", [False, True])
def test_the_call_is_the_one_that_jax_makes(jax_on_a_hopper, dtype, heads_first):
    rows, heads, kv_heads, width, slots, per_row = 3, 4, 2, 64, 16, 5
    inner = (kv_heads, slots) if heads_first else (slots, kv_heads)
    q = jax.ShapeDtypeStruct((rows, heads, width), dtype)
    k = jax.ShapeDtypeStruct((rows * per_row, *inner, width), dtype)
    lengths = jax.ShapeDtypeStruct((rows,), jnp.int32)
    table = jax.ShapeDtypeStruct((rows, per_row), jnp.int32)

    def theirs(q, k, v, lengths, table):
        table = table[:, None, :, None]
        return jax_cudnn.paged_attention(
            q[:, :, None] if heads_first else q[:, None],
            k,
            v,
            jnp.ones(rows, jnp.int32),
            lengths,
            table,
            table,
            scale=0.125,
            mask_type=jax_cudnn.MaskType.PADDING,
            qkv_layout="BNTH" if heads_first else "BTNH",
            return_residual=True,
        )

    ours = functools.partial(paged_call, scale=0.125, heads_first=heads_first)
    (want,) = calls(cuda_text(theirs, q, k, k, lengths, table))
    (got,) = calls(cuda_text(ours, q, k, k, lengths, table))
    assert got == want


@pytest.mark.parametrize("name", [*sorted(MORE), "paged_at_edges"])
def test_what_is_claimed_is_lowered_for_cuda(name):
    p = claimed()[name]
    operands = jax.eval_shape(functools.partial(make_inputs, p, "fwd", 0))
    ((target, config, (_, _, types)),) = calls(cuda_text(functools.partial(kernel.forward, p, Config()), operands))
    assert target == "__cudnn$fmhaSoftmax"
    assert config["cudnn_fmha_backend_config"]["is_paged_attention"]
    rows = p.batch * p.q_len
    assert f"tensor<{rows}x{p.num_q_heads}x1xf32>" in types
    given = jax.eval_shape(functools.partial(kernel.forward, p, Config()), operands)
    assert given["out"].shape == (p.batch, p.q_len, p.num_q_heads, p.head_dim)
    assert given["out"].dtype == p.dtype
    assert (given["lse"].shape, given["lse"].dtype) == (given["out"].shape[:3], jnp.float32)


def careless(q, k, v, lengths, page_table, *, scale, heads_first):
    """Attention over pages as cuDNN does it: values of hidden tokens are multiplied by zero, pages are trusted."""
    types = (jax.ShapeDtypeStruct(q.shape, q.dtype), jax.ShapeDtypeStruct(q.shape[:2], jnp.float32))
    compute = functools.partial(careless_numpy, scale=scale, heads_first=heads_first)
    return jax.pure_callback(compute, types, q, k, v, lengths, page_table)


def careless_numpy(q, k, v, lengths, page_table, *, scale, heads_first):
    dtype = q.dtype
    q, k, v, lengths, page_table = (np.asarray(x) for x in (q, k, v, lengths, page_table))
    q, k, v = (x.astype(np.float32) for x in (q, k, v))
    assert page_table.min() >= 0
    assert page_table.max() < len(k)
    assert lengths.min() >= 1
    assert lengths.max() <= page_table.shape[1] * k.shape[2 if heads_first else 1]
    k, v = (np.swapaxes(x, 1, 2) if heads_first else x for x in (k, v))
    out, lse = np.zeros(q.shape, np.float32), np.zeros(q.shape[:2], np.float32)
    for row in range(len(q)):
        keys, values = (x[page_table[row]].reshape(-1, *x.shape[2:]) for x in (k, v))
        hidden = np.arange(len(keys)) >= lengths[row]
        for head in range(q.shape[1]):
            kv_head = head // (q.shape[1] // keys.shape[1])
            logits = np.where(hidden, -np.inf, keys[:, kv_head] @ q[row, head] * scale)
            powers = np.exp(logits - logits.max())
            lse[row, head] = logits.max() + np.log(powers.sum())
            out[row, head] = powers / powers.sum() @ values[:, kv_head]
    return out.astype(dtype), lse


@pytest.mark.parametrize(
    "name",
    chosen(
        [*sorted(MORE), "contiguous_ragged", "paged_at_edges", "one_token_pages", "large_pages", "group_of_five"],
        [*sorted(MORE)[:2], "contiguous_ragged", "paged_at_edges", "one_token_pages", "group_of_five"],
    ),
)
@pytest.mark.filterwarnings("ignore:invalid value")
def test_rows_are_right_around_a_library_that_multiplies_garbage(monkeypatch, name):
    monkeypatch.setattr(kernel, "paged_call", careless)
    p = claimed()[name]
    operands = jax.jit(functools.partial(make_inputs, p, "fwd"))(1)
    assert_right(p, operands, jax.jit(functools.partial(kernel.forward, p, Config()))(operands))


@pytest.mark.filterwarnings("ignore:invalid value")
def test_lengths_and_pages_that_do_not_exist_are_made_safe(monkeypatch):
    monkeypatch.setattr(kernel, "paged_call", careless)
    p = claimed()["paged_at_edges"]
    operands = jax.jit(functools.partial(make_inputs, p, "fwd"))(1)
    lengths = jnp.array([-5, 0, -(2**31), -1, 0, -7, -2, -3, -4, -6])
    forward = jax.jit(functools.partial(kernel.forward, p, Config()))
    found = forward(operands._replace(kv_lens=lengths))
    assert not np.asarray(found["out"], np.float32).any()
    assert np.isneginf(found["lse"]).all()
    full = jnp.zeros_like(operands.k)
    capacity = operands.page_table.shape[1] * p.page_size
    clean = operands._replace(k=full, v=full, kv_lens=jnp.full(p.batch, 2**31 - 1))
    lse = forward(clean)["lse"]
    np.testing.assert_allclose(lse, np.log(capacity), rtol=1e-6)


@pytest.mark.parametrize(
    ("changes", "device", "version", "word"),
    [
        ({}, Device(platform="cpu", family="x86_64", variant="cpu-x86_64"), (9, 19, 0), "NVIDIA"),
        ({}, dataclasses.replace(H200, family="sm_75"), (9, 19, 0), "8.0"),
        ({}, H200, None, "not found"),
        ({}, H200, (9, 4, 0), "9.5"),
        ({}, H200, (9, 10, 1), "known bugs"),
        ({"dtype": "float32"}, H200, (9, 19, 0), "bfloat16"),
        ({"kv_dtype": "float8_e4m3fn"}, H200, (9, 19, 0), "float8_e4m3fn"),
        ({"window": 5}, H200, (9, 19, 0), "top left"),
        ({"soft_cap": 3.0}, H200, (9, 19, 0), "cap"),
        ({"layout": "head_first"}, H200, (9, 19, 0), "head_first"),
        ({"layout": "interleaved"}, H200, (9, 19, 0), "interleaved"),
        ({"layout": "hnd", "page_size": 0}, H200, (9, 19, 0), "without pages"),
        ({"page_size": 24}, H200, (9, 19, 0), "power of two"),
        ({"v_head_dim": 16}, H200, (9, 19, 0), "equal"),
        ({"head_dim": 36}, H200, (9, 19, 0), "multiple of 8"),
        ({"head_dim": 264}, H200, (9, 19, 0), "256"),
        ({"head_dim": 192}, dataclasses.replace(H200, family="sm_80"), (9, 19, 0), "128"),
        ({"head_dim": 192}, dataclasses.replace(H200, family="sm_100"), (9, 19, 0), "128"),
        ({"head_dim": 192}, H200, (9, 9, 0), "128"),
        ({"head_dim": 192}, H200, (9, 10, 2), ""),
        ({"has_sinks": True, "q_len": 8}, H200, (9, 5, 0), ""),
        ({"page_size": 0}, dataclasses.replace(H200, family="sm_80"), (9, 19, 0), ""),
    ],
)
def test_limits_are_reasons_in_words(monkeypatch, changes, device, version, word):
    monkeypatch.setattr(limits, "cudnn_version", lambda: version)
    reason = SPEC.unsupported(problem(**{"page_size": 16} | changes), "fwd", device)
    assert (reason is None) == (word == "")
    assert word in (reason or "")


def test_untuned_every_other_kernel_comes_before_it():
    here = [spec for spec in kernels_of("paged_decode") if spec.backend != "pallas_tpu"]
    places = {spec.name: OP.place(spec, problem(**PAGES), "fwd", H200) for spec in here}
    assert sorted(places, key=places.__getitem__) == ["cudnn", "xla", "triton_hopper", "triton"]


def test_it_is_lowered_under_a_shard_map_that_checks_types(monkeypatch):
    monkeypatch.setattr(dispatch, "current_device", lambda: H200)
    mesh = jax.make_mesh((1,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec

    @functools.partial(
        jax.shard_map,
        mesh=mesh,
        in_specs=(*[spec(None, None, "x")] * 3, spec(), spec()),
        out_specs=spec(None, None, "x"),
    )
    def decode(q, k, v, lengths, table):
        return attn_tune.paged_decode(q, k, v, lengths, table, platform="cudnn")

    q = jax.ShapeDtypeStruct((3, 1, 4, 64), jnp.bfloat16)
    k = jax.ShapeDtypeStruct((40, 16, 2, 64), jnp.bfloat16)
    lengths, table = jax.ShapeDtypeStruct((3,), jnp.int32), jax.ShapeDtypeStruct((3, 5), jnp.int32)
    assert [target for target, *_ in calls(cuda_text(decode, q, k, k, lengths, table))] == ["__cudnn$fmhaSoftmax"]
