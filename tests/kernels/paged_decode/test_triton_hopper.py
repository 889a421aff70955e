"""Latents on Hopper, as far as it goes without one: what the kernel refuses, what it tries, what its builds hold."""

import dataclasses

import pytest

from attn_tune.devices.identity import device_from_kind
from attn_tune.kernels.lang.gluon.latents import shared_bytes
from attn_tune.kernels.paged_decode.triton import SPEC as TRITON
from attn_tune.kernels.paged_decode.triton_hopper import SPEC
from attn_tune.kernels.paged_decode.triton_hopper.plan import chunk_of, widths
from attn_tune.ops.paged_decode.features import samples
from attn_tune.ops.paged_decode.problem import Problem
from attn_tune.schema.device import Device
from attn_tune.schema.errors import UsageError

H200 = device_from_kind("nvidia-h200")
SEARCH = SPEC.searches["fwd"]


def problem(B=128, S=4096, N=128, H=576, V=512, T=1, page=64, **flags):
    return Problem(
        batch=B, q_len=T, kv_len=S, num_q_heads=N, num_kv_heads=1, head_dim=H, v_head_dim=V, page_size=page,
        layout="latent", scale=flags.pop("scale", 0.1), **flags,
    )  # fmt: skip


PROBLEMS = {
    "whole": problem(),
    "one of eight": problem(N=16),
    "drafts": problem(T=4, N=64),
    "one long": problem(B=1, S=65536),
    "one short": problem(B=1, S=64),
    "uneven": problem(workload="exp"),
    "window": problem(window=100),
    "contiguous": problem(page=0),
    "narrow": problem(H=48, V=32),
}


@pytest.mark.parametrize(
    ("p", "device", "words"),
    [
        (problem(), Device(platform="cuda", family="sm_80", variant="nvidia-a100"), "sm_80"),
        (problem(), Device(platform="cuda", family="sm_100", variant="nvidia-b200"), "sm_100"),
        (problem(), Device(platform="cpu", family="x86_64", variant="cpu-x86_64"), "cpu"),
        (dataclasses.replace(problem(H=128, V=128), layout="nhd"), H200, "layout is nhd"),
        (problem(dtype="float32"), H200, "float32"),
        (problem(kv_dtype="int8", kv_scale="token"), H200, "int8"),
        (problem(H=580), H200, "h=580 is no multiple of 8"),
        (problem(H=640), H200, "h=640 has more than 64 columns"),
        (problem(page=4), H200, "page=4"),
        (problem(scale=-1.0), H200, "positive"),
    ],
)
def test_a_problem_that_the_kernel_of_latents_cannot_do_has_a_reason(p, device, words):
    assert words in SPEC.unsupported(p, "fwd", device)


def test_samples_of_16_bit_latents_are_taken():
    taken = {name for name, p in samples().items() if SPEC.unsupported(p, "fwd", H200) is None}
    assert taken == {"latent", "latent_contiguous", "latent_large_pages", "latent_without_rope", "latent_long"}


@pytest.mark.parametrize("p", PROBLEMS.values(), ids=PROBLEMS)
def test_all_candidates_fit_and_give_a_multiprocessor_one_program_at_most(p):
    candidates = SEARCH.candidates[""](p, H200)
    assert candidates[0] == SEARCH.heuristic(p, H200)
    assert len(set(candidates)) >= 3
    assert {config.halves_ahead for config in candidates} == {0, 1, 2}
    assert max(shared_bytes(*widths(p.head_dim, p.v_head_dim), c.num_stages) for c in candidates) <= 232448
    tiles = -(-p.q_len * p.num_q_heads // 64)
    assert max(c.num_programs * tiles for c in candidates) <= 132


def test_equal_sequences_are_not_cut_where_that_idles_few_multiprocessors():
    assert SEARCH.heuristic(problem(), H200).num_programs == 64
    assert SEARCH.heuristic(problem(N=16), H200).num_programs == 128
    assert SEARCH.heuristic(problem(B=100, N=16), H200).num_programs == 132
    assert SEARCH.heuristic(problem(N=16, workload="exp"), H200).num_programs == 132


def test_a_config_keeps_its_programs_a_multiprocessor_for_other_heads():
    config = SEARCH.heuristic(problem(workload="exp"), H200)
    assert SEARCH.adapt(problem(workload="exp"), problem(N=16), H200, config).num_programs == 132


def test_a_slot_too_many_is_refused_with_figures():
    reason = SEARCH.infeasible(problem(), H200, dataclasses.replace(SEARCH.heuristic(problem(), H200), num_stages=3))
    assert "296960 bytes" in reason
    assert "232448" in reason


@pytest.mark.parametrize(("knobs", "words"), [({"num_stages": 1}, "num_stages"), ({"num_programs": 0}, "num_programs")])
def test_a_knob_of_the_kernel_of_latents_outside_its_range_is_named(knobs, words):
    with pytest.raises(UsageError, match=words):
        dataclasses.replace(SEARCH.heuristic(problem(), H200), **knobs)


def test_the_untuned_order_puts_it_first_where_multiprocessors_have_keys():
    place = SPEC.priority["cuda"]
    assert place(problem(), "fwd", H200) > TRITON.priority["cuda"] > place(problem(B=1, N=16), "fwd", H200)


@pytest.mark.parametrize(
    ("h", "v", "expected"), [(576, 512, (512, 64)), (48, 32, (128, 0)), (192, 128, (128, 64)), (32, 32, (128, 0))]
)
def test_columns_are_walked_in_whole_panels(h, v, expected):
    assert widths(h, v) == expected


@pytest.mark.parametrize(("page", "expected"), [(0, 64), (64, 64), (128, 64), (48, 16), (8, 8)])
def test_a_copy_brings_keys_of_one_page(page, expected):
    assert chunk_of(page) == expected
