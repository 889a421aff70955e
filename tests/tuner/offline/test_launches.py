"""The launches of a traced program: those that an output needs, and those that differ in their grid alone."""

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl

from attn_tune.ops.flash_attention.problem import Problem
from attn_tune.ops.registry import get_op
from attn_tune.tuner.offline.compilers.launch_cache import LaunchCache
from attn_tune.tuner.offline.compilers.launches import launches_of
from attn_tune.tuner.offline.compilers.longer_launches import longer_launches
from attn_tune.tuner.offline.predict.schedule import KernelSchedule, Stretch
from attn_tune.tuner.protocol import ConfigRef
from attn_tune.tuner.work.compile import part_function
from attn_tune.tuner.work.lowering_helper import abstract_inputs

FORWARD = {"block_q": 128, "block_kv": 256, "block_kv_compute": 128}
BACKWARD = {"dq": {"block_q": 128, "block_kv": 256}, "dkv": {**FORWARD, "block_q": 256}}


def problem_of(length, **problem):
    """A causal problem of ``length`` tokens."""
    sizes = {"batch": 2, "q_len": length, "kv_len": length, "num_q_heads": 4, "num_kv_heads": 2}
    return Problem(
        **{**sizes, "head_dim": 128, "v_head_dim": 128, "causal": True, "dtype": "bfloat16", **problem}
    )  # fmt: skip


def launches_for(ref):
    inputs = abstract_inputs(get_op("flash_attention").inputs, ref.runs_on, ref.direction)
    return launches_of(jax.jit(part_function(ref)).trace(inputs).jaxpr.jaxpr)


def launches(length, config, *, direction="fwd", part="", kernel="pallas_tpu_splash", **problem):
    """Of the config on a causal problem of ``length`` tokens."""
    return launches_for(make_ref(length, config, direction, part, kernel, **problem))


def make_ref(length, config, direction="fwd", part="", kernel="pallas_tpu_splash", **problem):
    return ConfigRef(
        kernel=f"flash_attention/{kernel}",
        signature=problem_of(length, **problem).signature,
        direction=direction,
        config=config,
        part=part,
    )


def test_a_part_needs_its_own_launch_only():
    (dq,) = launches(1024, BACKWARD, direction="bwd", part="dq")
    (dkv,) = launches(1024, BACKWARD, direction="bwd", part="dkv")
    both = launches(1024, BACKWARD, direction="bwd")
    assert "dq" in dq.name
    assert "dkv" in dkv.name
    assert [one.key for one in both] == [dq.key, dkv.key]


def test_a_launch_without_a_name_is_called_after_its_function():
    backward = {
        "dq": {"block_q": 128, "block_k_major": 256, "block_k": 128},
        "dkv": {"block_q_major": 256, "block_q": 128, "block_k_major": 256, "block_k": 128},
    }
    names = [one.name for one in launches(1024, backward, direction="bwd", kernel="pallas_tpu_flash", num_kv_heads=4)]
    # Its walk follows from it.
    assert [("dq" in name, "dkv" in name) for name in names] == [(True, False), (False, True)]


def test_launches_over_longer_and_more_sequences_share_a_key():
    (one,), (other,) = launches(1024, FORWARD), launches(4096, FORWARD, batch=1)
    assert one.key == other.key
    assert (one.steps, other.steps) == (8 * 8 * 4, 4 * 32 * 16)
    # Heads may be shared by cores.
    assert one.is_parallel


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({**FORWARD, "block_kv_compute": 256}, {}),
        ({**FORWARD, "block_q": 256}, {}),
        ({**FORWARD, "k_layout": "seq_minor"}, {}),
        ({**FORWARD, "vmem_limit_kib": 32768}, {}),
        (FORWARD, {"causal": False}),
        (FORWARD, {"window": (512, 0)}),
        (FORWARD, {"soft_cap": 30.0}),
        (FORWARD, {"head_dim": 64, "v_head_dim": 64}),
        (FORWARD, {"dtype": "float32"}),
        # One block of keys never changes: the compiler keeps it.
        (FORWARD, {"kv_len": 256, "q_len": 256}),
    ],
)
def test_a_config_or_problem_that_changes_a_step_changes_the_key(config, problem):
    (plain,), (changed,) = launches(1024, FORWARD), launches(1024, config, **problem)
    assert plain.key != changed.key


FLASH = {"block_b": 1, "block_q": 512, "block_k_major": 512, "block_k": 256}


@pytest.mark.parametrize(
    ("ref", "grids"),
    [
        (make_ref(512, FORWARD), [(8, 8, 4)]),  # Two blocks of keys.
        (make_ref(1024, FORWARD), [(8, 8, 4)]),  # As it is.
        (make_ref(512, BACKWARD, "bwd"), [(8, 8, 4), (4, 8, 4)]),
        (make_ref(1024, FLASH, kernel="pallas_tpu_flash"), [(4, 4, 4, 4)]),
        # With twice the length there would be two blocks of what one holds.
        (make_ref(512, FLASH, kernel="pallas_tpu_flash"), [(4, 4, 1, 1)]),
        (make_ref(256, FORWARD), [(8, 2, 1)]),
    ],
)
def test_a_launch_of_two_blocks_along_an_axis_is_compiled_as_four(ref, grids):
    own = launches_for(ref)
    others = longer_launches(own, ref, launches_for)
    assert [one.grid for one in others] == grids
    for one, other in zip(own, others, strict=True):
        assert one.likeness == other.likeness
        # What stands in for itself has the only key that it can have.
        assert (one is other) == (one.grid == other.grid)
    (longest,) = launches(8192, {**FORWARD})
    if ref.config == FORWARD and 1 not in grids[0]:
        assert others[0].key == longest.key


def add_one(x):
    def kernel(x_ref, o_ref):
        o_ref[...] = x_ref[...] + 1.0

    return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), name="add_one")(x)


def test_a_launch_in_a_loop_cannot_stand_alone_and_one_in_a_call_can():
    x = jax.ShapeDtypeStruct((8, 128), jnp.float32)

    def looped(x):
        return jax.lax.fori_loop(0, 3, lambda i, y: add_one(y), x)

    assert launches_of(jax.make_jaxpr(looped)(x).jaxpr) is None
    assert launches_of(jax.make_jaxpr(lambda x: x + 1)(x).jaxpr) is None
    (called,) = launches_of(jax.make_jaxpr(jax.jit(lambda x: add_one(x) * 2))(x).jaxpr)
    assert called.name == "add_one"


def test_a_schedule_with_other_steps_keeps_its_share_of_two_cores():
    inner = Stretch(bundles=7, loops=(66, 4))
    one = KernelSchedule(name="k", stretches=(Stretch(bundles=3), inner), steps=64)
    two = KernelSchedule(name="k", stretches=(Stretch(bundles=3), inner), steps=128)
    assert (one.with_steps(256).grid_steps, one.with_steps(256).steps) == (258, 256)
    assert two.with_steps(256).grid_steps == 130
    assert one.with_steps(256).stretches[1].loops == (258, 4)
    assert one.with_steps(256).with_steps(64) == one
    assert one.with_steps(None) == one


def test_the_launch_cache_gives_back_what_was_put_and_nothing_for_a_torn_file(tmp_path):
    cache = LaunchCache(tmp_path)
    assert cache.get("a") is None
    cache.put("a", {"steps": 3})
    assert LaunchCache(tmp_path).get("a") == {"steps": 3}
    (tmp_path / "a.json").write_text('{"steps"')
    assert cache.get("a") is None
    LaunchCache(tmp_path / "gone").put("a", {"steps": 3})
