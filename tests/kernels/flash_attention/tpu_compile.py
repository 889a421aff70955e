"""Compiles TPU kernels with libtpu, which needs no TPU. Run as a script it prints one JSON line per case.

A script because libtpu wants a process of its own: it takes a lock of the whole machine, and its flags are read once.
"""

import json
import sys

import jax
from jax.experimental import topologies
from jax.sharding import SingleDeviceSharding

from attn_tune.devices.identity import device_from_kind
from attn_tune.kernels.registry import get_kernel
from attn_tune.ops.contract import load
from attn_tune.ops.flash_attention.inputs import make_inputs
from attn_tune.ops.flash_attention.problem import Problem

TOPOLOGIES = {"tpu-v5e": "v5e:2x2", "tpu-v6e": "v6e:1x1"}
PROBLEM = Problem(
    batch=2, q_len=300, kv_len=520, num_q_heads=4, num_kv_heads=2, head_dim=80, v_head_dim=80, causal=True,
    scale=80**-0.5, has_sinks=True, has_segments=True,
)  # fmt: skip


def compiled(kernel: str, direction: str, target: str) -> str:
    """``"compiled"``, or the compiler's error."""
    spec, device = get_kernel(f"flash_attention/{kernel}"), device_from_kind(target)
    search = spec.searches[direction]
    config = search.heuristic(PROBLEM, device)
    topology = topologies.get_topology_desc(topology_name=TOPOLOGIES[target], platform="tpu")
    sharding = SingleDeviceSharding(topology.devices[0])
    inputs = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
        jax.eval_shape(lambda seed: make_inputs(PROBLEM, direction, seed), 0),
    )
    call = load(search.call)
    lowered = jax.jit(lambda x: call(PROBLEM, config, x)).trace(inputs).lower(
        lowering_platforms=("tpu",)
    )  # fmt: skip
    try:
        lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        return str(error)
    return "compiled"


if __name__ == "__main__":
    for case in sys.argv[1:]:
        print(json.dumps({"case": case, "result": compiled(*case.split(","))}), flush=True)
