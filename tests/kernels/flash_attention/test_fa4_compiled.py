"""FlashAttention-4 compiled for an absent Hopper GPU, where the extra is installed: it is too large for dev."""

import importlib.util
import os
import subprocess
import sys

import pytest

from attn_tune.kernels.flash_attention._fa4.limits import MODULES

NEEDS = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, MODULES)), reason="needs the extra fa4, whose wheels have 200 MB"
)
# In a process of its own: the compiler keeps the GPU that it compiles for, and JAX finds none here.
_PROGRAM = """
import dataclasses, sys
from attn_tune.devices.identity import device_from_kind
from attn_tune.kernels.registry import get_kernel
from attn_tune.ops.flash_attention.problem import Problem
from attn_tune.schema.config import config_to_dict
from attn_tune.kernels.lang.triton.limits import CompileError
from attn_tune.tuner.protocol import ConfigRef
from attn_tune.tuner.work.compile import lower_config
from attn_tune.tuner.work.lowering_helper import abstract_inputs

H200 = device_from_kind("nvidia-h200")
PLAIN = Problem(batch=1, q_len=200, kv_len=300, num_q_heads=4, num_kv_heads=2, head_dim=64, v_head_dim=64)
RICH = dataclasses.replace(PLAIN, causal=True, has_segments=True, soft_cap=30.0, has_sinks=True, has_lse_gradient=True)

def lower(kernel, direction, problem, **knobs):
    search = get_kernel(f"flash_attention/{kernel}").searches[direction]
    config = dataclasses.replace(search.heuristic(problem, H200), **knobs)
    ref = ConfigRef(kernel=f"flash_attention/{kernel}", signature=problem.signature, direction=direction,
                    config=config_to_dict(config), problem=problem)
    inputs = abstract_inputs("attn_tune.ops.flash_attention.inputs:make_inputs", problem, direction)
    return lower_config(ref, inputs, 90)

if sys.argv[1] == "programs":
    one = lower("fa4", "fwd", RICH)
    assert one.backend == "cute" and b"CuteDSLRT_NvJaxCutlassCall" in one.program
    assert one.resources.code_digest
    print(one.resources.code_digest)
    print(lower("fa4_deterministic", "bwd", RICH).resources.code_digest)
else:
    try:
        lower("fa4", "bwd", PLAIN, block_k=192)
    except CompileError as error:
        assert "\\n" not in str(error) and "\\x1b" not in str(error), error
        print(error)
"""


def ran(what, **variables):
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": ""} | variables
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, what], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\n")[:-1]


@NEEDS
@pytest.mark.slow
def test_fa4_compiles_with_every_feature_to_the_same_program_each_time(tmp_path):
    first = ran("programs", CUTE_DSL_KEEP="ptx", CUTE_DSL_DUMP_DIR=str(tmp_path))
    assert len(set(first)) == 2
    assert ran("programs") == first
    # Both have a soft cap, and one text may take the other's place. An exact division a pair took longer than all else.
    texts = [path.read_text() for path in tmp_path.glob("*.ptx")]
    assert texts
    for text in texts:
        assert "tanh.approx.f32" in text
        assert "div.rn.f32" not in text


@NEEDS
@pytest.mark.slow
def test_what_the_compiler_of_fa4_refuses_is_a_reason_of_one_line():
    assert ran("refused") != []
