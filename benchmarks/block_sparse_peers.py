"""Block-sparse attention beside dense kernels of the same problem: device time, interleaved, cold cache.

    python benchmarks/block_sparse_peers.py --out blocks.json --flex

For each point the untuned configs of our Triton kernels and those of ``_CHANGES``. Documents race with our flash
attention, to which they are segments, and without these; random blocks with it without any mask. With ``--flex``
PyTorch's FlexAttention too, of the same blocks. A row says microseconds, the operations of the listed pairs a second,
and how far the output is from that of flash attention with segments or with a dense mask. A GPU is needed; ``--dry``
only makes problems and configs.
"""

import functools
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch_busy import median_us
from untuned_peers import (
    Calls,
    Changes,
    calls_of,
    compiled_calls,
    configs_of,
    planned_device,
    problem_of,
    record,
    timed,
)

_HEADS = "n=32 k=8 h=128 v=128 dtype=bfloat16"
_NARROW = _HEADS.replace("128", "64")
_POINTS: Mapping[str, tuple[str, str]] = {
    "documents fwd 1x32k": ("fwd", f"b=1 t=32768 s=32768 {_HEADS} causal=1 workload=documents"),
    "random fwd 1x32k": ("fwd", f"b=1 t=32768 s=32768 {_HEADS}"),
    "documents bwd 1x32k": ("bwd", f"b=1 t=32768 s=32768 {_HEADS} causal=1 workload=documents"),
    "random bwd 1x32k": ("bwd", f"b=1 t=32768 s=32768 {_HEADS}"),
    "documents fwd 1x8k": ("fwd", f"b=1 t=8192 s=8192 {_HEADS} causal=1 workload=documents"),
    "documents fwd 4x4k": ("fwd", f"b=4 t=4096 s=4096 {_HEADS} causal=1 workload=documents"),
    "documents fwd 1x32k H64": ("fwd", f"b=1 t=32768 s=32768 {_NARROW} causal=1 workload=documents"),
    "documents fwd 4x4k H64": ("fwd", f"b=4 t=4096 s=4096 {_NARROW} causal=1 workload=documents"),
    "random fwd 1x32k H64": ("fwd", f"b=1 t=32768 s=32768 {_NARROW}"),
    "random fwd 1x8k 64": ("fwd", f"b=1 t=8192 s=8192 {_HEADS} bq=64 bk=64 blocks=1n"),
}
_CHANGES: Mapping[str, Mapping[str, Changes]] = {
    "fwd": {
        "triton": {"": ({"longest_first": False},)},
        "triton_hopper": {
            "": (
                {"ping_pong": False},
                {"ping_pong": True},
                {"heads_per_section": 8},
                {"heads_per_section": 32},
                {"block_k": 64, "num_stages": 4},
                {"num_stages": 3},
            )
        },
    },
    "bwd": {
        "triton": {
            "dq": ({"num_stages": 2}, {"block_q": 64, "num_warps": 4}, {"block_k": 64, "num_stages": 2}),
            "dkv": ({"num_stages": 3}, {"block_k": 128, "num_warps": 8}, {"block_q": 32, "num_stages": 3}),
        }
    },
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit status."""
    points = ((name, *point) for name, point in _POINTS.items())
    return record(str(__doc__), points, _row, _words, rival="flex", rounds=10, arguments=arguments)


def _words(row: dict[str, Any], peer: str) -> str:
    return f"{row['flops'] / row['us'][peer] / 1e6:6.1f} TFLOP/s  off {row['distance'].get(peer, '-')}"


def our_calls(problem: Any, direction: str, operands: Any) -> Calls:
    """A call of each config of each of our kernels that takes the problem; the untuned one of `triton` comes first."""
    from attn_tune.kernels.registry import get_kernel

    calls: Calls = {}
    for name, changes in _CHANGES[direction].items():
        kernel = f"block_sparse_attention/{name}"
        if get_kernel(kernel).unsupported(problem, direction, planned_device()) is None:
            configs = configs_of(kernel, problem, direction, changes)
            word = "" if name == "triton" else f"{name} "
            calls |= calls_of(kernel, problem, direction, {word + x: c for x, c in configs.items()}, operands)
    return calls


def rivals_of(problem: Any, direction: str, operands: Any) -> Calls:
    """Our flash attention: a call and its operands by name. The first computes the same."""
    import jax.numpy as jnp

    from attn_tune.devices.identity import current_device
    from attn_tune.kernels.registry import get_kernel
    from attn_tune.ops.block_sparse_attention.patterns import pattern
    from attn_tune.ops.block_sparse_attention.reference import as_dense
    from attn_tune.ops.contract import load
    from attn_tune.ops.flash_attention.operands import Operands

    device, listed = current_device(), pattern(problem)
    plain = Operands(q=operands.q, k=operands.k, v=operands.v)
    variants = [("dense", as_dense(problem), plain)]
    if problem.workload == "documents":
        # Of documents a row of blocks lists the blocks of its own from the first on.
        ids = jnp.asarray(np.argmax(listed[0, 0], axis=-1).repeat(problem.mask_block_k), jnp.int32)
        ids = jnp.broadcast_to(ids, operands.q.shape[:2])
        segments = plain._replace(q_segments=ids, kv_segments=ids)
        variants.insert(0, ("segments", as_dense(problem, has_segments=True), segments))
    elif direction == "fwd" and listed.shape[1] == 1:
        spread = jnp.asarray(listed).repeat(problem.mask_block_q, 2).repeat(problem.mask_block_k, 3)
        masked = as_dense(problem, mask_dims="11ts")
        variants.insert(0, ("dense mask", masked, plain._replace(mask=spread)))
    calls: Calls = {}
    for word, flash, given in variants:
        for name in ("triton", "triton_hopper") if direction == "fwd" else ("triton",):
            spec = get_kernel(f"flash_attention/{name}")
            search = spec.searches.get(direction)
            if search is None or spec.unsupported(flash, direction, device):
                continue
            config = search.heuristic(flash, device)
            calls[f"flash {name}, {word}"] = functools.partial(load(search.call), flash, config), given
    return calls


def _row(name: str, direction: str, text: str, args: Any) -> dict[str, Any]:
    import jax

    from attn_tune.api.flash_attention_call import row_delta
    from attn_tune.ops.block_sparse_attention.inputs import make_inputs
    from attn_tune.ops.block_sparse_attention.operands import BackwardInputs
    from attn_tune.ops.block_sparse_attention.problem import flops
    from attn_tune.ops.flash_attention import operands as dense

    problem = problem_of("block_sparse_attention", text)
    row: dict[str, Any] = {"point": name, "signature": problem.signature.text, "flops": flops(problem, direction)}
    if args.dry:
        print(f"{name}: {', '.join(our_calls(problem, direction, None))}", flush=True)
        return row
    operands = jax.jit(functools.partial(make_inputs, problem, "fwd"))(0)
    calls = our_calls(problem, direction, operands) | rivals_of(problem, direction, operands)
    if direction == "bwd":
        made = jax.jit(our_calls(problem, "fwd", operands)["untuned"][0])(operands)
        saved = dense.Residuals(made["out"], made["lse"])
        dout = jax.random.normal(jax.random.key(1), saved.out.shape, saved.out.dtype)
        rest = (saved, dout, row_delta(saved, dout, None))
        calls = {
            x: (call, (BackwardInputs if given is operands else dense.BackwardInputs)(given, *rest))
            for x, (call, given) in calls.items()
        }
    outputs: dict[str, Any] = {}
    ready = compiled_calls(calls, outputs.__setitem__)
    exact = next((outputs[x] for x in outputs if x.endswith((", segments", ", dense mask"))), None)
    far = {} if exact is None else {peer: _distance(found, exact) for peer, found in outputs.items()}
    del outputs, exact
    rivals = {"flex": functools.partial(_flex, problem, direction, args.rounds)} if args.rival else {}
    return row | {"distance": far} | timed(name, ready, args.rounds, rivals)


def _distance(found: Mapping[str, Any], exact: Mapping[str, Any]) -> float:
    """The largest difference of an output, as a share of the largest element."""
    import jax.numpy as jnp

    shares: list[float] = []
    for name in exact:
        one, other = (x[name].astype(jnp.float32) for x in (found, exact))
        same = (one == other) | (jnp.isneginf(one) & jnp.isneginf(other))
        largest = jnp.max(jnp.where(jnp.isfinite(other), jnp.abs(other), 0.0))
        shares.append(float(jnp.max(jnp.where(same, 0.0, jnp.abs(one - other))) / largest))
    return round(max(shares), 5)


def _flex(problem: Any, direction: str, rounds: int) -> float:
    """The median device time of FlexAttention in microseconds, of the backward without the forward."""
    import torch
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    from attn_tune.ops.block_sparse_attention.patterns import pattern

    p, device = problem, {"device": "cuda", "dtype": torch.bfloat16}
    torch.manual_seed(0)
    q, k, v = (
        torch.randn(p.batch, heads, length, p.head_dim, **device, requires_grad=direction == "bwd")
        for heads, length in ((p.num_q_heads, p.q_len), (p.num_kv_heads, p.kv_len), (p.num_kv_heads, p.kv_len))
    )
    listed = torch.from_numpy(np.ascontiguousarray(pattern(p))).cuda()
    of_heads = listed.shape[1] > 1

    def sees(b: Any, h: Any, row: Any, column: Any) -> Any:
        found = listed[0, h if of_heads else 0, row // p.mask_block_q, column // p.mask_block_k]
        return found & (row >= column) if p.causal else found

    sizes = (None, p.num_q_heads if of_heads else None, p.q_len, p.kv_len)
    block = (max(128, p.mask_block_q), max(128, p.mask_block_k))
    blocks = create_block_mask(sees, *sizes, device="cuda", BLOCK_SIZE=block, _compile=True)
    attend = torch.compile(flex_attention, dynamic=False)
    dout = torch.randn_like(q)

    def forward() -> Any:
        return attend(q, k, v, block_mask=blocks, enable_gqa=True)

    def prepared() -> Any:
        if direction == "fwd":
            return lambda: torch.no_grad()(forward)()
        out = forward()
        return lambda: torch.autograd.grad(out, (q, k, v), dout)

    return median_us(prepared, rounds)


if __name__ == "__main__":
    sys.exit(main())
