"""The knob ``value_pairs`` of the Triton kernel: where it is refused, and that sweeps try it elsewhere."""

import dataclasses

import pytest

from attn_tune.devices.identity import device_from_kind
from attn_tune.kernels.paged_decode.triton import SPEC
from attn_tune.ops.paged_decode.problem import Problem

H200 = device_from_kind("nvidia-h200")
SEARCH = SPEC.searches["fwd"]
CODES = Problem(
    batch=4,
    q_len=1,
    kv_len=4096,
    num_q_heads=32,
    num_kv_heads=8,
    head_dim=128,
    v_head_dim=128,
    page_size=64,
    kv_dtype="float8_e4m3fn",
    kv_scale="tensor",
)


def test_sweeps_over_codes_try_values_in_pairs():
    assert {config.value_pairs for config in SEARCH.candidates[""](CODES, H200)} == {False, True}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kv_dtype": "same", "kv_scale": "none"}, "a cache of codes"),
        ({"layout": "latent", "num_kv_heads": 1}, "values apart from keys"),
        ({"dtype": "float32"}, "16-bit queries"),
        ({"v_head_dim": 33}, "v=33"),
    ],
)
def test_values_in_pairs_are_refused_with_a_reason(changes, words):
    problem = dataclasses.replace(CODES, **changes)
    config = dataclasses.replace(SEARCH.heuristic(problem, H200), value_pairs=True)
    assert words in SEARCH.infeasible(problem, H200, config)
    assert not any(config.value_pairs for config in SEARCH.candidates[""](problem, H200))
