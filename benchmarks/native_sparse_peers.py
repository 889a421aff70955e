"""Native sparse attention beside dense causal attention of the same arrays: device time, interleaved, cold cache.

    python benchmarks/native_sparse_peers.py --out native_sparse.json --fla

The selected branch alone, of 64 query and 4 key heads of 128 and 16 blocks of 64 keys. For each point the untuned
config of Triton, at one length those of ``_CHANGES`` too, the dense kernels that can do the same arrays, untuned, and
with ``--fla`` the kernel of flash-linear-attention with the same blocks, if torch and fla can be imported. A row says
microseconds and the operations of the selected pairs a second. A GPU is needed; ``--dry`` only makes problems.
"""

import functools
import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from torch_busy import median_us
from untuned_peers import Calls, Changes, calls_of, compiled_calls, configs_of, problem_of, record, timed

_SIZES = "n=64 k=4 h=128 v=128 top=16 dtype=bfloat16"
_LENGTHS = (16384, 32768, 65536)
_POINTS: Mapping[str, tuple[str, str]] = {
    f"{direction} {length // 1024}k {workload}": (
        direction,
        f"b=1 t={length} s={length} {_SIZES}" + (f" workload={workload}" if workload != "local" else ""),
    )
    for workload in ("local", "random", "same")
    for length in _LENGTHS
    for direction in ("fwd", "bwd")
}
_CHANGED = 32768
_KERNEL = "native_sparse_attention/triton"
_CHANGES: Mapping[str, Changes] = {
    "fwd": {
        "": (
            {"num_stages": 2},
            {"num_stages": 4},
            {"num_warps": 1},
            {"block_k": 64, "num_stages": 2},
            {"block_k": 16, "num_warps": 1},
            {"block_k": 64, "num_warps": 4},
        )
    },
    "bwd": {
        "dq": ({"num_stages": 3}, {"num_warps": 4}, {"block_k": 32, "num_stages": 3}, {"block_k": 32, "num_warps": 1}),
        "dkv": ({"num_stages": 3}, {"share": 4096}, {"block_q": 32, "num_stages": 3}),
    },
}
_DENSE = {"fwd": ("triton", "triton_hopper", "cudnn"), "bwd": ("triton", "triton_hopper_fused", "cudnn")}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit status."""
    points = ((name, *point) for name, point in _POINTS.items())
    return record(str(__doc__), points, _row, _speed, rival="fla", rounds=6, arguments=arguments)


def _speed(row: dict[str, Any], peer: str) -> str:
    return f"{row['flops'] / row['us'][peer] / 1e6:6.1f} TFLOP/s"


def _row(name: str, direction: str, text: str, args: Any) -> dict[str, Any]:
    import jax

    from attn_tune.ops.native_sparse_attention.inputs import make_inputs
    from attn_tune.ops.native_sparse_attention.problem import flops

    problem = problem_of("native_sparse_attention", text)
    row: dict[str, Any] = {"point": name, "signature": problem.signature.text, "flops": flops(problem, direction)}
    is_changed = problem.q_len == _CHANGED and problem.workload == "local"
    configs = configs_of(_KERNEL, problem, direction, _CHANGES[direction] if is_changed else {})
    if args.dry:
        print(f"{name}: {', '.join(configs)}", flush=True)
        return row
    operands = jax.jit(functools.partial(make_inputs, problem, "fwd"))(0)
    given = operands if direction == "fwd" else _backward(problem, operands)
    calls = calls_of(_KERNEL, problem, direction, configs, given)
    if direction == "bwd":
        calls["untuned dq alone"] = _alone(*calls["untuned"], "dq")
        calls["untuned dk and dv alone"] = _alone(*calls["untuned"], "dk", "dv")
        calls["lists alone"] = functools.partial(_lists, problem), operands
    if problem.workload == "local":
        calls |= _dense(problem, direction, operands)
    rivals = {}
    if args.rival and importlib.util.find_spec("fla"):
        rivals["fla"] = functools.partial(_fla, problem, direction, np.asarray(operands.indices), args.rounds)
    return row | timed(name, compiled_calls(calls), args.rounds, rivals)


def _alone(call: Callable[..., Any], given: Any, *names: str) -> tuple[Callable[..., Any], Any]:
    """A call of some of the gradients alone."""

    def some(inputs: Any) -> Any:
        made = call(inputs)
        return {name: made[name] for name in names}

    return some, given


def _lists(problem: Any, operands: Any) -> Any:
    """The lists of queries that the gradients of keys and values walk."""
    from attn_tune.kernels.native_sparse_attention._lists.lists import lists_of
    from attn_tune.ops.native_sparse_attention.blocks import blocks_of

    return lists_of(problem, operands, blocks_of(problem, operands.cu_seqlens))


def _backward(problem: Any, operands: Any) -> Any:
    """The inputs of the backward behind our own forward."""
    import jax
    import jax.numpy as jnp

    from attn_tune.devices.identity import current_device
    from attn_tune.kernels.registry import get_kernel
    from attn_tune.ops.contract import load
    from attn_tune.ops.native_sparse_attention.operands import BackwardInputs, Residuals

    search = get_kernel("native_sparse_attention/triton").searches["fwd"]
    config = search.heuristic(problem, current_device())
    made = jax.jit(functools.partial(load(search.call), problem, config))(operands)
    saved = Residuals(made["out"], made["lse"])
    dout = jax.random.normal(jax.random.key(1), saved.out.shape, saved.out.dtype)
    product = jax.jit(lambda x, y: jnp.einsum("btnv,btnv->btn", x, y, preferred_element_type=jnp.float32))
    return BackwardInputs(operands, saved, dout, product(dout, saved.out))


def _dense(problem: Any, direction: str, operands: Any) -> Calls:
    """Our dense causal kernels of the same arrays, untuned."""
    import jax

    from attn_tune.api.flash_attention_call import row_delta
    from attn_tune.devices.identity import current_device
    from attn_tune.kernels.registry import get_kernel
    from attn_tune.ops.contract import load
    from attn_tune.ops.fields.attention import SIZES
    from attn_tune.ops.flash_attention.operands import BackwardInputs, Operands, Residuals
    from attn_tune.ops.flash_attention.problem import Problem

    device = current_device()
    sizes = {name: getattr(problem, name) for name in SIZES}
    flash = Problem(**sizes, dtype=problem.dtype, causal=True, scale=problem.scale, needs_lse=True)
    given: Any = Operands(q=operands.q, k=operands.k, v=operands.v)
    if direction == "bwd":
        search = get_kernel("flash_attention/triton").searches["fwd"]
        made = jax.jit(functools.partial(load(search.call), flash, search.heuristic(flash, device)))(given)
        saved = Residuals(made["out"], made["lse"])
        dout = jax.random.normal(jax.random.key(1), saved.out.shape, saved.out.dtype)
        given = BackwardInputs(given, saved, dout, row_delta(saved, dout, None))
    calls: Calls = {}
    for name in _DENSE[direction]:
        spec = get_kernel(f"flash_attention/{name}")
        search = spec.searches.get(direction)
        if search is not None and spec.unsupported(flash, direction, device) is None:
            call = functools.partial(load(search.call), flash, search.heuristic(flash, device))
            calls[f"dense {name}"] = call, given
    return calls


def _fla(problem: Any, direction: str, indices: Any, rounds: int) -> float:
    """The median device time of fla's selected branch in microseconds, of the backward without the forward."""
    import torch
    from fla.ops.nsa import parallel_nsa

    p, device = problem, {"device": "cuda", "dtype": torch.bfloat16}
    torch.manual_seed(0)
    q, k, v = (
        torch.randn(p.batch, p.q_len, heads, width, **device, requires_grad=direction == "bwd")
        for heads, width in ((p.num_q_heads, p.head_dim), (p.num_kv_heads, p.head_dim), (p.num_kv_heads, p.v_head_dim))
    )
    blocks = torch.from_numpy(indices.astype(np.int64)).cuda()
    dout = torch.randn(p.batch, p.q_len, p.num_q_heads, p.v_head_dim, **device)

    def forward() -> Any:
        return parallel_nsa(
            q, k, v, block_indices=blocks, block_counts=p.num_selected, block_size=p.block_size, scale=p.scale
        )

    def prepared() -> Any:
        if direction == "fwd":
            return forward
        out = forward()
        return lambda: torch.autograd.grad(out, (q, k, v), dout)

    return median_us(prepared, rounds)


if __name__ == "__main__":
    sys.exit(main())
