"""Per-device shapes: under shard_map, and where shardings are part of types. In a process with eight CPU devices."""

from tests.several_devices import run_with_devices

PROGRAM = """
import jax, jax.numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P
import numpy as np
from attn_tune.tuner.discover.calls import find_calls
from attn_tune.tuner.discover.hlo import read_hlo
from attn_tune.tuner.discover.jaxpr import read_jaxpr
from attn_tune.tuner.discover.stablehlo import read_module
import attn_tune

q = jax.ShapeDtypeStruct((8, 32, 4, 16), jnp.bfloat16)
devices = np.array(jax.devices()).reshape(4, 2)
attend = lambda q, k, v: jax.nn.dot_product_attention(q, k, v, is_causal=True)

def show(name, calls):
    texts = [f"{c.direction}:{c.signature.text.split(' ', 1)[1]}:{c.count}" for c in calls.calls]
    print(name, "|".join(texts), "|", " ".join(calls.remarks))

def forms(name, f, *args):
    traced = jax.jit(f).trace(*args)
    show(name, find_calls(read_jaxpr(traced.jaxpr)))
    lowered = traced.lower()
    show(name, find_calls(read_module(lowered.compiler_ir("stablehlo"))))

mesh = Mesh(devices, ("data", "model"))
spec = P("data", None, "model", None)
inside = jax.shard_map(attend, mesh=mesh, in_specs=(spec,) * 3, out_specs=spec)
forms("shard_map", inside, q, q, q)
mine = lambda q, k, v: attn_tune.flash_attention(q, k, v, causal=True, mesh=mesh, in_specs=(spec,) * 3)
forms("ours", mine, q, q, q)

checked = jax.shard_map(
    lambda q, k, v: attn_tune.flash_attention(q, k, v, causal=True),
    mesh=mesh, in_specs=(spec,) * 3, out_specs=spec,
)
forms("checked", checked, q, q, q)

whole = jax.ShapeDtypeStruct(q.shape, q.dtype, sharding=NamedSharding(mesh, spec))
lowered = jax.jit(attend).lower(whole, whole, whole)
show("automatic", find_calls(read_module(lowered.compiler_ir("stablehlo"))))

lowered = jax.jit(lambda q, k, v: attn_tune.flash_attention(q, k, v, causal=True)).lower(whole, whole, whole)
show("ours, cut", find_calls(read_module(lowered.compiler_ir("stablehlo"))))
show("ours, compiled", find_calls(read_hlo(lowered.compile().as_text(), "here")))

import sys, types
from attn_tune.tuner.discover import program_grid
made = sys.modules["made"] = types.ModuleType("made")
made.cut = lambda: (attend, (whole, whole, whole))
made.whole = lambda: (attend, (q, q, q))
for name in ("cut", "whole"):
    show(f"traced, {name}", program_grid.calls_of_function(f"made:{name}"))

typed = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)
with jax.set_mesh(typed):
    cut = jax.ShapeDtypeStruct(q.shape, q.dtype, sharding=NamedSharding(typed, spec))
    einsum = lambda q, k, v: jnp.einsum("bnts,bsnh->btnh", jax.nn.softmax(jnp.einsum("btnh,bsnh->bnts", q, k)), v)
    show("explicit", find_calls(read_jaxpr(jax.jit(einsum).trace(cut, cut, cut).jaxpr)))
"""


def test_shapes_of_sharded_programs_are_those_of_one_device():
    printed = run_with_devices(8, "-c", PROGRAM)
    local = "fwd:b=2 t=32 s=32 n=2 k=2 h=16 v=16 dtype=bfloat16"
    lines = printed.splitlines()
    assert lines[:6] == [
        f"{name} {local} causal=1:1 | " for name in ("shard_map",) * 2 + ("ours",) * 2 + ("checked",) * 2
    ]
    for line, name in zip(lines[6:8], ("automatic", "ours, cut"), strict=True):
        assert line.startswith(f"{name} fwd:b=8 t=32 s=32 n=4")
        assert "for 8 devices and XLA cuts it" in line
    assert lines[8].startswith(f"ours, compiled {local} causal=1:1 | ")
    of_whole = local.replace("b=2", "b=8").replace("n=2 k=2", "n=4 k=4")
    assert lines[9].startswith(f"traced, cut {of_whole} causal=1:1 | the arguments lie on 8 devices and XLA cuts")
    assert lines[10] == f"traced, whole {of_whole} causal=1:1 | "
    assert lines[11] == f"explicit {local}:1 | "
