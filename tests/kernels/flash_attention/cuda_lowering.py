"""Lowering for a Hopper GPU on a machine without one: what Mosaic and Pallas-Triton refuse, they refuse here."""

import contextlib
import importlib.util

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, AxisType

from attn_tune.ops.contract import load
from attn_tune.ops.flash_attention.inputs import make_inputs
from attn_tune.ops.registry import get_op
from attn_tune.tuner.work.compile import part_outputs

needs_cuda_plugin = pytest.mark.skipif(
    not any(importlib.util.find_spec(f"jax_cuda{n}_plugin") for n in (12, 13)),
    reason="jax's CUDA plugin, which lowers Mosaic GPU kernels, is not installed",
)


def structs(problem, direction):
    """The inputs of one call, without data."""
    return jax.eval_shape(lambda: make_inputs(problem, direction, 0))


def outputs_of(spec, problem, direction, config):
    """Shapes and dtypes of a call's outputs."""
    call = load(spec.searches[direction].call)
    return jax.eval_shape(lambda x: call(problem, config, x), structs(problem, direction))


def lowered(spec, problem, direction, config, part=""):
    """The StableHLO text of one part for an H200; raises what the compiler of the kernel says."""
    search = spec.searches[direction]
    call, names = load(search.call), part_outputs(search, part)

    def run(inputs):
        found = call(problem, config, inputs)
        return {name: found[name] for name in names or found if name in found}

    with as_on_a_hopper():
        traced = jax.jit(run).trace(structs(problem, direction))
        return traced.lower(lowering_platforms=("cuda",)).as_text()


def as_on_a_hopper() -> contextlib.AbstractContextManager:
    """Traces for an H200, on any machine."""
    device = AbstractDevice(device_kind="NVIDIA H200", num_cores=132, platform="cuda")
    mesh = AbstractMesh((1,), ("x",), axis_types=(AxisType.Auto,), abstract_device=device)
    return jax.sharding.use_abstract_mesh(mesh)


def check_outputs(problem, direction, found):
    """Each output has the shape and dtype of the op's contract."""
    p, x = problem, structs(problem, direction)
    operands = x if direction == "fwd" else x.operands
    want = {
        "out": jax.ShapeDtypeStruct((p.batch, p.q_len, p.num_q_heads, p.v_head_dim), p.dtype),
        "lse": jax.ShapeDtypeStruct((p.batch, p.num_q_heads, p.q_len), jnp.float32),
        "dq": operands.q,
        "dk": operands.k,
        "dv": operands.v,
        "dbias": operands.bias,
    }
    assert set(found) == {output.name for output in get_op("flash_attention").outputs(problem, direction)}
    for name in found:
        assert (found[name].shape, found[name].dtype) == (want[name].shape, want[name].dtype), name
