"""Ragged attention whose queries are codes: the problems that the kernel refuses, and those that others leave to it."""

import dataclasses

import pytest

from attn_tune.kernels.ragged_paged.pallas_tpu_ragged import SPEC as TPU
from attn_tune.kernels.ragged_paged.triton import SPEC as WIDE
from attn_tune.kernels.ragged_paged.triton_8bit import SPEC
from attn_tune.kernels.registry import kernels_of
from attn_tune.ops.contract import load
from attn_tune.ops.ragged_paged.features import samples
from attn_tune.ops.ragged_paged.op import OP
from attn_tune.ops.ragged_paged.problem import Problem
from tests.ops.cases import H200, TPUS, cuda

LLAMA = Problem(
    batch=1, tokens=4096, kv_len=4096, num_q_heads=32, num_kv_heads=8, head_dim=128, v_head_dim=128, page_size=64,
    kv_dtype="float8_e4m3fn", kv_scale="tensor", q_scale="token",
)  # fmt: skip
INT8 = dataclasses.replace(LLAMA, kv_dtype="int8")


@pytest.mark.parametrize(
    ("problem", "device", "words"),
    [
        (dataclasses.replace(LLAMA, q_scale="none"), H200, "queries are bfloat16 (qscale=none)"),
        (dataclasses.replace(LLAMA, dtype="float32"), H200, "dtype is float32"),
        (dataclasses.replace(LLAMA, head_dim=16), H200, "32 columns at least; h=16"),
        (dataclasses.replace(LLAMA, head_dim=512), H200, "h=512 is above 256"),
        (dataclasses.replace(LLAMA, num_q_heads=8 * 129), H200, "129 query heads share a key head"),
        (LLAMA, cuda(86), "kv=float8_e4m3fn needs compute capability 8.9"),
        (INT8, cuda(75), "needs compute capability 8.0"),
        (LLAMA, TPUS[0], "need an NVIDIA GPU"),
    ],
)
def test_a_refused_problem_is_named(problem, device, words):
    assert words in SPEC.unsupported(problem, "fwd", device)


@pytest.mark.parametrize(("problem", "capability"), [(LLAMA, 89), (LLAMA, 90), (LLAMA, 100), (INT8, 80), (INT8, 90)])
def test_codes_are_taken_from_the_first_device_that_multiplies_them(problem, capability):
    device = cuda(capability)
    assert SPEC.unsupported(problem, "fwd", device) is None
    search = SPEC.searches["fwd"]
    assert search.infeasible(problem, device, search.heuristic(problem, device)) is None


def test_samples_of_codes_are_its_own_and_no_others():
    taken = {name for name, p in load(OP.samples)().items() if SPEC.unsupported(p, "fwd", H200) is None}
    assert taken == {name for name in samples() if name.startswith("queries_")}


def test_no_other_kernel_but_xla_takes_queries_that_are_codes():
    for device in (H200, TPUS[-1]):
        takers = {k.name for k in kernels_of("ragged_paged") if k.unsupported(LLAMA, "fwd", device) is None}
        assert takers == {"xla"} | ({"triton_8bit"} if device is H200 else set())
    assert "qscale=token has queries that are codes" in WIDE.unsupported(LLAMA, "fwd", H200)
    interleaved = dataclasses.replace(LLAMA, layout="interleaved")
    assert "qscale=token has queries that are codes" in TPU.unsupported(interleaved, "fwd", TPUS[-1])
