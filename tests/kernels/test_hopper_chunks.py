"""Walks over chunks on Hopper, as far as they go without one: refusals, untuned configs, and what builds hold."""

import dataclasses

import pytest

from attn_tune.devices.identity import device_from_kind
from attn_tune.kernels.registry import get_kernel
from attn_tune.ops.contract import load
from attn_tune.ops.registry import get_op
from attn_tune.runtime.lookup.dispatch import choose
from attn_tune.schema.device import Device
from attn_tune.tuner.plan.small_problems import refusal, takeable
from tests.kernels.triton_lowered import launches

H200 = device_from_kind("nvidia-h200")
OPS = ("gated_delta_rule", "linear_attention")


def problem(op, heads=64, length=32768, **more):
    sizes = {"num_key_heads": heads, "num_value_heads": heads, "head_dim": 128, "v_head_dim": 128, "scale": 0.1}
    return get_op(op).problem(**({"batch": 1, "length": length, "has_final_state": True} | sizes | more))


def search(op):
    return get_kernel(f"{op}/triton_hopper").searches["fwd"]


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize(
    ("more", "device", "words"),
    [
        ({}, Device(platform="cuda", family="sm_80", variant="nvidia-a100"), "sm_80"),
        ({}, Device(platform="cuda", family="sm_100", variant="nvidia-b200"), "sm_100"),
        ({}, Device(platform="cpu", family="x86_64", variant="cpu-x86_64"), "cpu"),
        ({"dtype": "float32"}, H200, "float32"),
        ({"batch": 20000, "length": 300}, H200, "b=20000 makes 2560000 programs"),
        ({"head_dim": 96}, H200, "h=96 is none of (64, 128)"),
        ({"v_head_dim": 96}, H200, "v=96 is no multiple of 64"),
    ],
)
def test_a_problem_that_walks_on_hopper_cannot_do_has_a_reason(op, more, device, words):
    assert words in get_kernel(f"{op}/triton_hopper").unsupported(problem(op, **more), "fwd", device)


@pytest.mark.parametrize("op", OPS)
def test_every_sample_of_16_bits_is_proven_with_wider_heads(op):
    refused = refusal(get_kernel(f"{op}/triton_hopper"), "fwd", H200)
    for name, sample in load(get_op(op).samples)().items():
        taken = takeable(get_op(op), sample, refused)
        if sample.dtype == "float32":
            assert taken is None, name
        else:
            assert dataclasses.replace(sample, head_dim=64, v_head_dim=64) == taken, name


@pytest.mark.parametrize("op", OPS)
def test_short_sequences_and_the_backward_are_left_to_others(op):
    lengths = ((1, "triton_steps"), (17, "triton"), (256, "triton"), (257, "triton_hopper"))
    for length, way, name in (*((n, "fwd", name) for n, name in lengths), (8192, "bwd", "triton")):
        p = problem(op, length=length, has_initial_state=True)
        assert choose(op, way, p, device=H200).spec.name == name


@pytest.mark.parametrize("op", OPS)
def test_packed_sequences_have_segments_by_triton_until_a_sweep_proves_others(op):
    packed = {"ragged": True, "batch": 2}
    assert choose(op, "fwd", problem(op, 8, **packed), device=H200).spec.name == "triton"
    assert choose(op, "fwd", problem(op, 64, **packed), device=H200).spec.name == "triton_hopper"
    assert search(op).heuristic(problem(op, 8, **packed), H200).segments == 1
    assert {c.segments for c in search(op).candidates[""](problem(op, 8, **packed), H200)} > {1, 4}


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize(
    ("heads", "length", "groups", "segments"),
    # Programs of one group are 128, 192, 256 and 16; an H200 has 132 multiprocessors.
    [(64, 32768, 1, 1), (96, 8192, 2, 1), (128, 8192, 2, 1), (8, 32768, 1, 8)],
)
def test_untuned_programs_take_the_fewest_turns_of_multiprocessors(op, heads, length, groups, segments):
    config = search(op).heuristic(problem(op, heads, length), H200)
    assert (config.groups, config.segments) == (groups, segments)


@pytest.mark.parametrize("op", OPS)
def test_segments_have_a_chunk_and_groups_their_columns(op):
    few = problem(op, heads=8, length=32768)
    tuned = dataclasses.replace(search(op).heuristic(few, H200), segments=16)
    assert search(op).adapt(few, problem(op, heads=8, length=300), H200, tuned).segments == 4
    narrow = problem(op, v_head_dim=64)
    assert search(op).heuristic(narrow, H200).groups == 1
    assert "128, the columns of 2 groups" in search(op).infeasible(narrow, H200, dataclasses.replace(tuned, groups=2))
    reason = search(op).infeasible(few, H200, dataclasses.replace(tuned, num_stages=6))
    assert "bytes of shared memory; sm_90 has 232448" in reason


@pytest.mark.slow
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("change", [{"groups": 1, "num_stages": 3}, {"groups": 2, "num_stages": 2, "segments": 4}])
def test_builds_hold_their_slots_and_multiply_from_registers(op, change):
    p = problem(op, heads=8)
    config = dataclasses.replace(search(op).heuristic(p, H200), **change)
    assert search(op).infeasible(p, H200, config) is None
    walks = [x for x in launches(get_op(op), p, search(op), config) if x.name in _WALKS]
    assert len(walks) == (1 if config.segments == 1 else 2)
    for walk in walks:
        assert walk.spill_bytes <= 160, walk.name
        assert "ldmatrix.sync.aligned.m8n8.x4.trans" in walk.ptx
        # Copies by descriptor, and no copies of threads.
        assert "cp.async.bulk.tensor" in walk.ptx
        assert "cp.async.cg" not in walk.ptx
    # What the config is refused for is what the build takes.
    less = dataclasses.replace(H200, shared_bytes=walks[-1].shared_bytes - 1)
    assert search(op).infeasible(p, less, config) is not None
    assert walks[-1].shared_bytes > _needed(op, p, config) - 3000


_WALKS = ("scan_kernel", "transitions_kernel", "segments_kernel")


def _needed(op, p, config):
    reason = search(op).infeasible(p, dataclasses.replace(H200, shared_bytes=1), config)
    return int(reason.split(" bytes")[0].rpartition(" ")[2])
