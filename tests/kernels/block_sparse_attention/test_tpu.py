"""Splash attention over a mask of blocks, in Pallas' TPU interpreter, and what it refuses."""

import dataclasses
import functools
import itertools

import jax
import pytest

from attn_tune.devices.identity import device_from_kind
from attn_tune.kernels.block_sparse_attention.pallas_tpu_splash import SPEC
from attn_tune.kernels.block_sparse_attention.pallas_tpu_splash.config import (
    BackwardConfig,
    DkvConfig,
    DqConfig,
    ForwardConfig,
)
from attn_tune.ops.block_sparse_attention.inputs import make_inputs
from attn_tune.ops.block_sparse_attention.op import OP
from attn_tune.ops.block_sparse_attention.problem import Problem
from attn_tune.ops.block_sparse_attention.reference import baseline, reference
from attn_tune.ops.tolerance import compare
from tests.chosen import chosen
from tests.kernels.tpu_interpreted import run

V5E = device_from_kind("tpu-v5e")
SMALL = Problem(
    batch=2, q_len=150, kv_len=300, num_q_heads=2, num_kv_heads=1, head_dim=16, v_head_dim=24, scale=0.3,
    dtype="float32", precision="highest", at_edges=True,
)  # fmt: skip
# A mask of each head, of which two rows of blocks see nothing; and parts of larger blocks.
CASES = {
    "of_both": dataclasses.replace(SMALL, block_dims="bn", causal=True, soft_cap=2.0),
    "parts": dataclasses.replace(
        SMALL, batch=1, q_len=300, kv_len=270, mask_block_q=256, mask_block_k=256, window=(200, 9), has_segments=True
    ),
}
FORWARD = ForwardConfig(block_q=128, block_kv=128, block_kv_compute=128)
BACKWARD = BackwardConfig(
    dq=DqConfig(block_q=128, block_kv=128), dkv=DkvConfig(block_q=128, block_kv=128, block_kv_compute=128)
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "direction"),
    chosen(itertools.product(CASES, OP.directions), [("of_both", "bwd"), ("parts", "fwd")]),
)
def test_outputs_and_gradients_are_right_in_the_interpreter(name, direction):
    problem = CASES[name]
    inputs = jax.jit(functools.partial(make_inputs, problem, direction))(1)
    exact, plain = (jax.jit(functools.partial(f, problem, direction))(inputs) for f in (reference, baseline))
    outputs = run(SPEC, direction, problem, FORWARD if direction == "fwd" else BACKWARD, inputs)
    errors = compare(outputs, exact, plain, OP.outputs(problem, direction))
    assert max(error.ratio for error in errors) <= 1, errors


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"mask_block_k": 64}, "its blocks have at least 128 rows and keys"),
        ({"has_segments": True}, "one row of segment ids"),
        ({"dtype": "float16"}, "no float16"),
        ({"q_len": 131072, "kv_len": 131072}, "scalar memory"),
    ],
)
def test_what_splash_attention_cannot_do_is_refused(change, words):
    problem = dataclasses.replace(SMALL, **change)
    assert words in SPEC.unsupported(problem, "fwd", V5E)


def test_a_launch_that_is_no_part_of_a_block_is_infeasible():
    wide = dataclasses.replace(FORWARD, block_kv=256)
    assert "divides the mask's block of 128" in SPEC.searches["fwd"].infeasible(SMALL, V5E, wide)
    assert SPEC.searches["fwd"].infeasible(SMALL, V5E, FORWARD) is None


def test_tables_of_many_heads_with_few_blocks_fill_lanes_of_scalar_memory():
    # Compiled for a TPU: libtpu allocated 1.25 MiB for the larger of both tables.
    heads = dataclasses.replace(SMALL, batch=8, q_len=10000, num_q_heads=16, mask_block_q=256, block_dims="b1")
    assert "1.9 MiB of scalar memory" in SPEC.unsupported(heads, "fwd", V5E)
    assert SPEC.unsupported(dataclasses.replace(heads, batch=2), "fwd", V5E) is None
