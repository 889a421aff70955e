"""Ragged attention over latents for Hopper, as far as it goes without one: queries as sequences, and refusals."""

import dataclasses

import pytest

from attn_tune.devices.identity import device_from_kind
from attn_tune.kernels.paged_decode.xla import SPEC as XLA
from attn_tune.kernels.paged_decode.xla.kernel import forward as decode
from attn_tune.kernels.ragged_paged.triton_hopper_latent import SPEC, forward, space
from attn_tune.ops.ragged_paged.features import samples
from attn_tune.ops.ragged_paged.inputs import make_inputs
from attn_tune.schema.device import Device
from tests.kernels.ragged_paged.dense_numpy import assert_right

H200 = device_from_kind("nvidia-h200")
SAMPLES = samples()
WIDE = dataclasses.replace(SAMPLES["latent"], head_dim=576, v_head_dim=512, num_q_heads=128, page_size=64)


@pytest.mark.parametrize(
    ("name", "queries", "changes"),
    [
        ("latent", 8, {}),
        ("latent_mixed", 1, {"num_q_heads": 40}),
        ("latent_mixed", 1, {"causal": False}),
        ("latent_everything", 1, {"kv_dtype": "same", "kv_scale": "none", "page_size": 8}),
    ],
)
def test_queries_decoded_as_sequences_are_right(name, queries, changes, monkeypatch):
    """Decoded by XLA, for the kernel in Gluon needs a Hopper."""

    def in_launches_of_32(problem, config, operands):
        assert problem.batch <= 32
        return decode(problem, XLA.searches["fwd"].heuristic(problem, H200), operands)

    monkeypatch.setattr(forward, "decode_forward", in_launches_of_32)
    monkeypatch.setattr(forward, "_MOST_SEQUENCES", 32)
    problem = dataclasses.replace(SAMPLES[name], **changes)
    assert space.queries_of(problem) == queries
    operands = make_inputs(problem, "fwd", 1)
    assert_right(problem, operands, forward.forward(problem, space.heuristic(problem, H200), operands))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, None),
        ({"layout": "nhd", "head_dim": 64, "v_head_dim": 64}, "layout is nhd"),
        ({"page_size": 0}, "page=0 is a contiguous cache"),
        ({"dtype": "float32"}, "float32"),
        ({"kv_dtype": "int8", "kv_scale": "token"}, "int8"),
    ],
)
def test_a_problem_that_triton_hopper_latent_cannot_do_has_a_reason(changes, words):
    reason = SPEC.unsupported(dataclasses.replace(WIDE, **changes), "fwd", H200)
    assert reason is None if words is None else words in reason
    assert "sm_80" in SPEC.unsupported(WIDE, "fwd", Device(platform="cuda", family="sm_80", variant="nvidia-a100"))


def test_triton_hopper_latent_is_first_where_tiles_are_filled_and_keys_are_many():
    long = dataclasses.replace(WIDE, batch=1, tokens=4096, kv_len=4096, at_edges=False)
    short = dataclasses.replace(long, tokens=1)
    unfilled = dataclasses.replace(long, num_q_heads=16, causal=False)
    places = [space.place(problem, "fwd", H200) for problem in (long, short, unfilled)]
    assert places[0] > places[1] == places[2]
    assert all(space.infeasible(long, H200, config) is None for config in space.candidates(long, H200))
    near = space.adapt(long, dataclasses.replace(long, num_q_heads=64), H200, space.heuristic(long, H200))
    assert near.num_programs == 2 * space.heuristic(long, H200).num_programs
