"""Walks over chunks on Hopper, as far as they go without one: refusals, untuned configs, and what builds hold."""

import dataclasses

import jax.numpy as jnp
import numpy as np
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
    # Steps of decoding, but for those of one token that it multiplies exactly.
    of_one_token = {"one_token", "one_token_at_edges", "pool_one_token", "ragged_tokens"}
    steps = {"four_tokens"} | (of_one_token if op == "gated_delta_rule" else set())
    for name, sample in load(get_op(op).samples)().items():
        taken = takeable(get_op(op), sample, refused)
        if sample.dtype == "float32" or name in steps:
            assert taken is None, name
        else:
            assert dataclasses.replace(sample, head_dim=64, v_head_dim=64) == taken, name


@pytest.mark.parametrize("op", OPS)
def test_short_sequences_are_left_to_others(op):
    for length, name in ((1, "triton_steps"), (17, "triton"), (256, "triton"), (257, "triton_hopper")):
        p = problem(op, length=length, has_initial_state=True)
        assert choose(op, "fwd", p, device=H200).spec.name == name


def test_a_backward_is_for_the_delta_rule():
    long, packed = {"length": 8192}, {"ragged": True, "batch": 2}
    chosen = {
        (op, str(more)): choose(op, "bwd", problem(op, **more), device=H200).spec.name
        for op in OPS
        for more in (long, {"length": 256}, packed)
    }
    assert {case for case, name in chosen.items() if name == "triton_hopper"} == {
        ("gated_delta_rule", str(long)),
        ("gated_delta_rule", str(packed)),
    }


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


@pytest.mark.parametrize(("length", "segments"), [(8192, 1), (32768, 2)])
def test_segments_of_the_delta_rule_are_walked_twice(length, segments):
    # An H200 took 258.2 and 259.6 us by one segment and by two, and 983 and 908 us.
    assert search("gated_delta_rule").heuristic(problem("gated_delta_rule", 32, length), H200).segments == segments


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


def test_gradients_have_a_program_a_multiprocessor_and_no_more_than_chunks():
    delta = get_kernel("gated_delta_rule/triton_hopper").searches["bwd"]
    long, short = problem("gated_delta_rule"), problem("gated_delta_rule", heads=2, length=300)
    tuned = delta.heuristic(long, H200)
    assert tuned.gradient_programs == 132
    assert (
        delta.adapt(long, short, H200, tuned).gradient_programs == delta.heuristic(short, H200).gradient_programs == 10
    )
    # They wait for no other, so that a device of fewer multiprocessors takes them in turns.
    assert delta.infeasible(long, dataclasses.replace(H200, units=78), tuned) is None
    nothing = problem("gated_delta_rule", heads=2, length=3, ragged=True, batch=1, at_edges=True)
    assert delta.heuristic(nothing, H200).gradient_programs >= 1
    most = dataclasses.replace(tuned, num_stages=3)
    assert "bytes of shared memory; sm_90 has 232448" in delta.infeasible(long, H200, most)
    assert all(delta.infeasible(long, H200, config) is None for config in delta.candidates[""](long, H200))


@pytest.mark.parametrize("starts", [None, (0, 0, 1, 64, 200, 200, 329), (5, 70, 133, 133, 300)])
def test_every_token_has_one_place(starts):
    triton = pytest.importorskip("triton")  # places are made beside a launch
    del triton
    from attn_tune.kernels.gated_delta_rule.triton_hopper.gradients import places_of
    from attn_tune.kernels.lang.triton.chunks.config import Chunks
    from attn_tune.kernels.lang.triton.chunks.static import static_of

    ragged = {} if starts is None else {"ragged": True, "batch": len(starts) - 1}
    p = problem("gated_delta_rule", heads=2, **({"length": 333, "batch": 3} | ragged))
    static = static_of(p, Chunks(chunk=64, prepare_warps=4), 64)
    found = np.asarray(places_of(None if starts is None else jnp.asarray(starts), static))
    assert found.shape == (static.slots, 4)
    edges = [0, 333, 666, 999] if starts is None else [0, *starts, 333]
    owner = np.full(edges[-1], -2)
    for place, (sequence, start, end, begin) in enumerate(found):
        if start >= end:
            continue
        assert (start - begin) % 64 == 0
        tokens = owner[start : min(start + 64, end)]
        assert (tokens == -2).all()
        tokens[:] = sequence
        if starts is not None and sequence >= 0:
            # Where launches before this one look for it.
            assert place == begin // 64 + sequence + 1 + (start - begin) // 64
    count = len(edges) - 1
    sequences = range(count) if starts is None else [-1, *range(count - 2), -1]
    wanted = np.concatenate([np.full(edges[i + 1] - edges[i], s) for i, s in enumerate(sequences)])
    np.testing.assert_array_equal(owner, wanted)


@pytest.mark.slow
def test_builds_of_the_backward_hold_their_slots():
    delta = get_kernel("gated_delta_rule/triton_hopper").searches["bwd"]
    p = problem("gated_delta_rule", heads=8, has_final_state=False)
    config = delta.heuristic(p, H200)
    _, walks, gradients = launches(get_op("gated_delta_rule"), p, delta, config, direction="bwd")
    assert (walks.name, gradients.name) == ("walks_kernel", "gradients_kernel")
    assert walks.spill_bytes == 0
    # More no longer fit what shared memory leaves of the first cache.
    assert gradients.spill_bytes <= 160
    for build in (walks, gradients):
        assert "cp.async.bulk.tensor" in build.ptx
        assert "cp.async.cg" not in build.ptx
    # What the config is refused for is what the larger build takes.
    most = max(walks.shared_bytes, gradients.shared_bytes)
    assert delta.infeasible(p, dataclasses.replace(H200, shared_bytes=most - 1), config) is not None
    reason = delta.infeasible(p, dataclasses.replace(H200, shared_bytes=1), config)
    assert most > int(reason.split(" bytes")[0].rpartition(" ")[2]) - 3000


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
