"""Block-sparse attention beside dense kernels of the same problem: device time, interleaved, cold cache.

    python benchmarks/block_sparse_peers.py --out blocks.json --flex

For each point the untuned config of Triton and those of ``_CHANGES``. Documents race with our flash attention, to which
they are segments; random blocks with it without any mask. With ``--flex`` PyTorch's FlexAttention too, of the same
blocks. A row says microseconds, the operations of the listed pairs a second, and how far the output is from that of
flash attention with segments or with a dense mask. A GPU is needed; ``--dry`` only makes problems and configs.
"""

import argparse
import dataclasses
import functools
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from paged_decode_peers import versions
from torch_busy import median_us

_HEADS = "n=32 k=8 h=128 v=128 dtype=bfloat16"
_POINTS: Mapping[str, tuple[str, str]] = {
    "documents fwd 1x32k": ("fwd", f"b=1 t=32768 s=32768 {_HEADS} causal=1 workload=documents"),
    "random fwd 1x32k": ("fwd", f"b=1 t=32768 s=32768 {_HEADS}"),
    "documents bwd 1x32k": ("bwd", f"b=1 t=32768 s=32768 {_HEADS} causal=1 workload=documents"),
    "random bwd 1x32k": ("bwd", f"b=1 t=32768 s=32768 {_HEADS}"),
    "documents fwd 1x8k": ("fwd", f"b=1 t=8192 s=8192 {_HEADS} causal=1 workload=documents"),
    "random fwd 1x8k 64": ("fwd", f"b=1 t=8192 s=8192 {_HEADS} bq=64 bk=64 blocks=1n"),
}
_CHANGES: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "fwd": (
        {"longest_first": False},
        {"block_q": 128, "num_warps": 8},
        {"num_stages": 2},
        {"num_stages": 4},
        {"block_k": 128, "num_stages": 2},
    ),
    "dq": ({"num_stages": 2}, {"block_q": 64, "num_warps": 4}, {"block_k": 64, "num_stages": 2}),
    "dkv": ({"num_stages": 3}, {"block_k": 128, "num_warps": 8}, {"block_q": 32, "num_stages": 3}),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--only", nargs="*", default=[""], help="points whose name contains one of these")
    parser.add_argument("--dry", action="store_true", help="only make problems and configs")
    parser.add_argument("--flex", action="store_true", help="time FlexAttention too")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=100.0, help="no point begins later than that")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args(arguments)
    report: dict[str, Any] = {"versions": versions(), "rows": []}
    end = time.monotonic() + args.seconds
    for name, (direction, text) in _POINTS.items():
        if not any(word in name for word in args.only):
            continue
        if time.monotonic() > end:
            print(f"{name}: no time left")
            continue
        report["rows"].append(_row(name, direction, text, args))
        if args.out:
            args.out.write_text(json.dumps(report, indent=1) + "\n")
    return 0


def problem_of(text: str) -> Any:
    """The problem of a point."""
    from attn_tune.ops.registry import get_op

    op = get_op("block_sparse_attention")
    return op.from_signature(op.parse_signature(f"block_sparse_attention/v1 {text}"))


def configs_of(problem: Any, direction: str) -> dict[str, Any]:
    """Our configs by what they change; of a backward those of one launch beside the other's untuned one."""
    from attn_tune.devices.identity import current_device
    from attn_tune.kernels.registry import get_kernel
    from attn_tune.schema.device import Device

    device = current_device()
    if device.platform != "cuda":
        device = Device(platform="cuda", family="sm_90", variant="nvidia-h200", units=132)
    search = get_kernel("block_sparse_attention/triton").searches[direction]
    start = search.heuristic(problem, device)
    found = {"untuned": start}
    for part in ("",) if direction == "fwd" else ("dq", "dkv"):
        base = getattr(start, part) if part else start
        for change in _CHANGES[part or direction]:
            changed = dataclasses.replace(base, **change)
            config = search.whole(start, part, changed)
            if config != start and search.infeasible(problem, device, config) is None:
                found[" ".join((part, *(f"{k}={v}" for k, v in change.items()))).strip()] = config
    return found


def rivals_of(problem: Any, direction: str, operands: Any) -> dict[str, tuple[Callable[..., Any], Any]]:
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
        ids = jnp.asarray(np.argmax(listed[0, 0], axis=-1).repeat(problem.mask_block_k)[None], jnp.int32)
        segments = plain._replace(q_segments=ids, kv_segments=ids)
        variants = [("segments", as_dense(problem, has_segments=True), segments)]
    elif direction == "fwd" and listed.shape[1] == 1:
        spread = jnp.asarray(listed).repeat(problem.mask_block_q, 2).repeat(problem.mask_block_k, 3)
        masked = as_dense(problem, mask_dims="11ts")
        variants.insert(0, ("dense mask", masked, plain._replace(mask=spread)))
    calls: dict[str, tuple[Callable[..., Any], Any]] = {}
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
    from attn_tune.devices.identity import current_device
    from attn_tune.kernels.registry import get_kernel
    from attn_tune.ops.block_sparse_attention.inputs import make_inputs
    from attn_tune.ops.block_sparse_attention.operands import BackwardInputs
    from attn_tune.ops.block_sparse_attention.problem import flops
    from attn_tune.ops.contract import load
    from attn_tune.ops.flash_attention import operands as dense
    from attn_tune.tuner.protocol import MeasurePolicy
    from attn_tune.tuner.work.measure import make_flush, race
    from attn_tune.tuner.work.timers.choose import choose_timer

    begin, problem = time.monotonic(), problem_of(text)
    row: dict[str, Any] = {"point": name, "signature": problem.signature.text, "flops": flops(problem, direction)}
    configs = configs_of(problem, direction)
    if args.dry:
        print(f"{name}: {', '.join(configs)}", flush=True)
        return row
    searches = get_kernel("block_sparse_attention/triton").searches
    operands = jax.jit(functools.partial(make_inputs, problem, "fwd"))(0)
    calls = {x: (functools.partial(load(searches[direction].call), problem, c), operands) for x, c in configs.items()}
    calls |= rivals_of(problem, direction, operands)
    if direction == "bwd":
        start = searches["fwd"].heuristic(problem, current_device())
        made = jax.jit(functools.partial(load(searches["fwd"].call), problem, start))(operands)
        saved = dense.Residuals(made["out"], made["lse"])
        dout = jax.random.normal(jax.random.key(1), saved.out.shape, saved.out.dtype)
        rest = (saved, dout, row_delta(saved, dout, None))
        calls = {
            x: (call, (BackwardInputs if given is operands else dense.BackwardInputs)(given, *rest))
            for x, (call, given) in calls.items()
        }
    entries, outputs, cannot = {}, {}, {}
    for peer, (call, given) in calls.items():
        try:
            compiled = jax.jit(call).lower(given).compile()
            outputs[peer] = compiled(given)
            entries[peer] = functools.partial(compiled, given)
        except Exception as error:  # any error of a peer is that peer's result
            cannot[peer] = _short(error)
    exact = next((outputs[x] for x in outputs if x.endswith((", segments", ", dense mask"))), None)
    far = {} if exact is None else {peer: _distance(found, exact) for peer, found in outputs.items()}
    del outputs
    measured = race(
        list(entries.values()),
        timer=choose_timer(),
        policy=MeasurePolicy(rounds=args.rounds, rounds_max_s=4.0),
        flush=make_flush(current_device()),
        round_id=name,
    ).measurements
    us = {peer: round(m.median_ns / 1e3, 2) for peer, m in zip(entries, measured, strict=True)}
    if args.flex:
        try:
            us["flex"] = _flex(problem, direction, args.rounds)
        except Exception as error:  # as above
            cannot["flex"] = _short(error)
    print(f"\n{name}  ({time.monotonic() - begin:.0f} s)", flush=True)
    for peer in sorted(us, key=us.__getitem__):
        speed = row["flops"] / us[peer] / 1e6
        print(f"  {us[peer]:10.1f} us  {speed:6.1f} TFLOP/s  off {far.get(peer, '-')}  {peer}", flush=True)
    for peer, reason in cannot.items():
        print(f"  {peer} cannot: {reason}", flush=True)
    return row | {"us": us, "distance": far, "cannot": cannot}


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


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


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
