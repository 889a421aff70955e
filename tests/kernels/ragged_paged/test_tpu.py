"""The TPU kernel of ragged calls, interpreted against numpy on sequences at every edge, and what it refuses."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from attn_tune.devices.identity import device_from_kind
from attn_tune.kernels.lang.pallas_tpu.memory import limit_of
from attn_tune.kernels.lang.pallas_tpu.ragged.blocks import expected_bytes
from attn_tune.kernels.lang.pallas_tpu.ragged.config import Config
from attn_tune.kernels.ragged_paged.pallas_tpu_ragged import SPEC
from attn_tune.ops.ragged_paged.inputs import make_inputs
from attn_tune.ops.ragged_paged.problem import Problem
from attn_tune.ops.registry import get_op
from tests.kernels.ragged_paged.dense_numpy import assert_right
from tests.kernels.tpu_interpreted import run_discharged

V6E = device_from_kind("tpu-v6e")
# Among its sequences are empty ones, some without queries, and some with more queries than tokens.
TINY = Problem(
    batch=9, tokens=60, kv_len=77, num_q_heads=4, num_kv_heads=2, head_dim=128, v_head_dim=128, page_size=8,
    layout="interleaved", scale=128**-0.5, at_edges=True,
)  # fmt: skip
CONFIG = Config(num_kv_pages_per_block=2, num_queries_per_block=16)


def inputs_of(problem):
    return make_inputs(problem, "fwd", 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [{"dtype": "float32"}, {"window": 19, "has_sinks": True, "soft_cap": 2.0}],
    ids=["float32", "window_sinks_cap"],
)
def test_rows_are_right_among_sequences_at_every_edge(changes, monkeypatch):
    problem = dataclasses.replace(TINY, **changes)
    operands = inputs_of(problem)
    assert SPEC.unsupported(problem, "fwd", V6E) is None
    assert SPEC.searches["fwd"].infeasible(problem, V6E, CONFIG) is None
    assert_right(problem, operands, run_discharged(SPEC, problem, CONFIG, operands, monkeypatch))


@pytest.mark.slow
def test_a_call_without_any_query_is_all_padding(monkeypatch):
    operands = inputs_of(TINY)
    empty = operands._replace(cu_q_lens=jnp.zeros_like(operands.cu_q_lens))
    found = run_discharged(SPEC, TINY, CONFIG, empty, monkeypatch)
    assert not np.asarray(found["out"], np.float32).any()
    assert np.isneginf(np.asarray(found["lse"])).all()


def test_blocks_that_do_not_fit_are_refused_with_the_numbers():
    search = SPEC.searches["fwd"]
    large = Config(num_kv_pages_per_block=8, num_queries_per_block=256)
    wide = dataclasses.replace(TINY, num_q_heads=64, num_kv_heads=8, page_size=64, kv_len=4096, tokens=4096)
    assert "MiB of VMEM; its limit on tpu-v6e is 32 MiB" in search.infeasible(wide, V6E, large)
    assert "above the 12 of a sequence" in search.infeasible(
        TINY, V6E, dataclasses.replace(CONFIG, num_kv_pages_per_block=16)
    )
    assert "above 64, for 60 queries" in search.infeasible(
        TINY, V6E, dataclasses.replace(CONFIG, num_queries_per_block=128)
    )


# What libtpu 0.0.52 refused of caches of codes, in MiB.
TAKEN = [
    ("tpu-v5p", "n=256 k=32 page=64 kv=float8_e4m3fn", "bfloat16", (16, 8), 16.82),
    ("tpu-v5p", "n=128 k=16 page=128 kv=float8_e4m3fn", "bfloat16", (8, 8), 16.06),
    ("tpu-v5e", "n=256 k=16 page=256 kv=int8 kvscale=tensor", "bfloat16", (4, 32), 65.25),
    ("tpu-v7x", "n=384 k=32 page=32 kv=float8_e4m3fn", "float32", (8, 32), 39.01),
    ("tpu-v7x", "n=512 k=32 page=32 kv=float8_e4m3fn", "float32", (8, 32), 51.31),
]


@pytest.mark.parametrize(("kind", "sizes", "dtype", "blocks", "mib"), TAKEN)
def test_no_launch_over_codes_takes_more_than_is_expected_of_it(kind, sizes, dtype, blocks, mib):
    heads, _, codes = sizes.partition(" kv=")
    text = f"ragged_paged/v1 b=4 t=8192 s=8192 {heads.replace(' page', ' h=128 v=128 page')} layout=interleaved"
    op, device = get_op("ragged_paged"), device_from_kind(kind)
    p = op.from_signature(op.parse_signature(f"{text} dtype={dtype} kv={codes}"))
    pages, queries = blocks
    launch = Config(num_kv_pages_per_block=pages, num_queries_per_block=queries)
    assert mib <= expected_bytes(p, launch) / 2**20 <= 1.25 * mib
    chosen = SPEC.searches["fwd"].heuristic(p, device)
    assert expected_bytes(p, chosen) <= limit_of(device, chosen.vmem_limit_kib)


def test_a_call_that_is_not_causal_is_refused():
    assert "causal=0" in SPEC.unsupported(dataclasses.replace(TINY, causal=False), "fwd", V6E)
