"""Kernels of linear attention and of GLA beside one another and beside fla: device time, interleaved, cold cache.

    python benchmarks/linear_attention_peers.py --out linear.json --fla

For each point the untuned configs of our Triton kernels, changed ones, and XLA's untuned one; with ``--fla`` the
untuned ones of Triton alone beside fla's kernels, where torch and fla can be imported. A row says microseconds, and the
worst error of each of ours on inputs at the edges, as a multiple of what is allowed. A GPU is needed; ``--dry`` only
makes the problems and configs.
"""

import dataclasses
import functools
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from gated_delta_rule_peers import COPY
from torch_busy import median_us
from untuned_peers import Calls, calls_of, compiled_calls, configs_of, copy_of, record, timed

_STATES = {"has_initial_state": True, "has_final_state": True}
# Heads of the 1.3B model of GLA's authors.
_WIDE = {"head_dim": 256, "v_head_dim": 512}
# A name, an op, a direction, sizes: batch, length, heads of queries and values; and the rest of the problem.
_POINTS: Sequence[tuple[str, str, str, tuple[int, int, int, int], Mapping[str, Any]]] = (
    ("head fwd H96 1x8192", "linear_attention", "fwd", (1, 8192, 96, 96), {}),
    ("gla fwd H96 1x8192", "gla", "fwd", (1, 8192, 96, 96), {}),
    ("head bwd H96 1x8192", "linear_attention", "bwd", (1, 8192, 96, 96), {}),
    ("gla bwd H96 1x8192", "gla", "bwd", (1, 8192, 96, 96), {}),
    ("head decode H32 32x1", "linear_attention", "decode", (32, 1, 32, 32), _STATES),
    ("gla decode H32 32x1", "gla", "decode", (32, 1, 32, 32), _STATES),
    ("head fwd H8 1x32768", "linear_attention", "fwd", (1, 32768, 8, 8), {}),
    ("constant fwd H64 1x8192", "linear_attention", "fwd", (1, 8192, 64, 64), {"gate": "constant"}),
    ("mamba2 fwd H80 1x8192", "linear_attention", "fwd", (1, 8192, 1, 80), {"v_head_dim": 64}),
    ("mamba2 bwd H80 1x8192", "linear_attention", "bwd", (1, 8192, 1, 80), {"v_head_dim": 64}),
    ("kda fwd H16 1x8192", "kda", "fwd", (1, 8192, 16, 16), {}),
    ("kda bwd H16 1x8192", "kda", "bwd", (1, 8192, 16, 16), {}),
    ("kda fwd H32 1x8192", "kda", "fwd", (1, 8192, 32, 32), {}),
    ("kda fwd H32 2x8192", "kda", "fwd", (2, 8192, 32, 32), {}),
    ("kda fwd H32 8x4096", "kda", "fwd", (8, 4096, 32, 32), {}),
    ("gla fwd H4 8x4096", "gla", "fwd", (8, 4096, 4, 4), _WIDE),
    ("gla fwd H4 4x4096", "gla", "fwd", (4, 4096, 4, 4), _WIDE),
    ("gla fwd H4 1x32768", "gla", "fwd", (1, 32768, 4, 4), _WIDE),
    ("gla bwd H4 8x4096", "gla", "bwd", (8, 4096, 4, 4), _WIDE),
    ("gla fwd H32 4x4096", "gla", "fwd", (4, 4096, 32, 32), {}),
    ("kda fwd H4 1x32768", "kda", "fwd", (1, 32768, 4, 4), {}),
    ("kda decode H32 32x1", "kda", "decode", (32, 1, 32, 32), _STATES),
)
_CHANGES: Mapping[tuple[str, str], Sequence[Mapping[str, Any]]] = {
    ("linear_attention", "fwd"): (
        {"num_stages": 1},
        {"block_v": 128, "num_warps": 8},
        {"block_v": 128, "num_warps": 8, "num_stages": 3},
    ),
    ("linear_attention", "bwd"): (
        {"gradient_block_v": 32},
        {"gradient_stages": 2},
        {"block_v": 64, "num_stages": 2},
        {"block_v": 64, "num_stages": 3},
        {"block_v": 32, "num_stages": 4},
    ),
    ("gla", "fwd"): (
        {"prepare_warps": 4, "prepare_columns": 32},
        {"prepare_columns": 64},
        {"chunk": 32},
        {"block_v": 128, "num_warps": 8},
        {"turned": True},
        {"turned": False},
        {"block_v": 32, "turned": False},
        {"block_v": 64, "turned": False, "segments": 1},
        {"block_v": 64, "turned": True, "segments": 1},
        {"block_v": 64, "turned": True, "segments": 2},
    ),
    ("gla", "bwd"): (
        {"block_v": 64, "num_stages": 2},
        {"block_v": 64, "num_stages": 3},
        {"block_v": 32, "num_stages": 2},
        {"gradient_stages": 1, "gradient_block_v": 32},
        {"gradient_stages": 3},
        {"gradient_columns": 64},
        {"gradient_warps": 4, "gradient_columns": 16},
        {"chunk": 32},
    ),
    ("kda", "fwd"): (
        {"prepare_channels": 32},
        {"prepare_channels": 128},
        {"prepare_registers": 168},
        {"block_v": 32, "num_stages": 2},
        {"block_v": 32, "num_stages": 3},
        {"block_v": 64, "num_stages": 1},
        {"block_v": 64, "num_stages": 2},
        {"block_v": 64, "num_stages": 3},
        {"block_v": 128, "num_stages": 1, "num_warps": 8},
        {"block_v": 16, "num_stages": 3},
        {"segments": 2, "block_v": 32},
        {"segments": 8, "block_v": 64},
    ),
    ("kda", "bwd"): (
        {"prepare_channels": 128},
        {"block_v": 32},
        {"gradient_channels": 64},
        {"gradient_warps": 4},
        {"gradient_block_v": 128},
    ),
    ("kda", "decode"): ({"block_v": 16, "num_warps": 2}, {"block_v": 64, "num_warps": 8}),
    ("linear_attention", "decode"): ({"block_v": 16, "num_warps": 2}, {"block_v": 64, "num_warps": 8}),
    ("gla", "decode"): ({"block_v": 16, "num_warps": 2}, {"block_v": 64, "num_warps": 8}),
}
_HOPPER: Mapping[tuple[str, str], Sequence[Mapping[str, Any]]] = {
    ("linear_attention", "fwd"): (
        {"groups": 1},
        {"groups": 2},
        {"num_stages": 2},
        {"segments": 1},
        {"segments": 4},
        {"segments": 16},
    ),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit status."""
    return record(str(__doc__), _POINTS, _row, _words, rival="fla", rounds=10, arguments=arguments)


def _words(row: dict[str, Any], peer: str) -> str:
    speed = row["bytes"] / row["us"][peer] / 1e6
    return f"{speed:5.2f} TB/s  error {row['error_ratio'].get(peer, '-')}"


def _problem(op: str, sizes: tuple[int, int, int, int], more: Mapping[str, Any]) -> Any:
    batch, length, keys, values = sizes
    given = {"head_dim": 128, "v_head_dim": 128, "scale": 128**-0.5, "has_final_state": True} | dict(more)
    from attn_tune.ops.registry import get_op

    return get_op(op).problem(batch=batch, length=length, num_key_heads=keys, num_value_heads=values, **given)


def _peers(op: str, direction: str, problem: Any) -> dict[str, tuple[str, Any]]:
    """A kernel and its config by the name of each of ours."""
    way = "bwd" if direction == "bwd" else "fwd"
    ours, plain = f"{op}/{'triton_steps' if direction == 'decode' else 'triton'}", f"{op}/xla"
    found = configs_of(ours, problem, way, {"": _CHANGES[op, direction]})
    peers = {name: (ours, config) for name, config in found.items()}
    if (op, direction) in _HOPPER:
        hopper = configs_of(f"{op}/triton_hopper", problem, way, {"": _HOPPER[op, direction]})
        peers |= {f"hopper {name}": (f"{op}/triton_hopper", config) for name, config in hopper.items()}
    untuned = configs_of(plain, problem, way, {})["untuned"]
    return peers | {"xla": (plain, untuned)}


def _row(
    name: str, op: str, direction: str, sizes: tuple[int, int, int, int], more: Mapping[str, Any], args: Any
) -> dict[str, Any]:
    import jax

    from attn_tune.ops.recurrent.contract import bytes_moved, outputs
    from attn_tune.ops.recurrent.inputs import make_inputs
    from attn_tune.ops.recurrent.reference import baseline, reference
    from attn_tune.ops.tolerance import compare

    problem = _problem(op, sizes, more)
    way = "bwd" if direction == "bwd" else "fwd"
    peers = _peers(op, direction, problem)
    if args.rival:
        peers = {name: peer for name, peer in peers.items() if name.endswith("untuned")}
    row: dict[str, Any] = {"point": name, "signature": problem.signature.text, "bytes": bytes_moved(problem, way)}
    if args.dry:
        print(f"{name}: {', '.join(peers)}", flush=True)
        return row
    inputs = jax.jit(functools.partial(make_inputs, problem, way))(0)
    # Fewer tokens: a reference of all would take longer than everything else.
    few = dataclasses.replace(problem, length=min(problem.length, 777), at_edges=True)
    hard = jax.jit(functools.partial(make_inputs, few, way))(0)
    exact, plain = (jax.jit(functools.partial(f, few, way))(hard) for f in (reference, baseline))
    calls: Calls = {}
    judged: Calls = {}
    for peer, (kernel, config) in peers.items():
        calls |= calls_of(kernel, problem, way, {peer: config}, inputs)
        judged |= calls_of(kernel, few, way, {peer: config}, hard)
    errors: dict[str, float] = {}

    def judge(peer: str, _: Any) -> None:
        found = jax.jit(judged[peer][0])(hard)
        errors[peer] = round(max(e.ratio for e in compare(found, exact, plain, outputs(few, way))), 3)

    rivals = {}
    if args.rival and importlib.util.find_spec("fla"):
        rivals["fla"] = functools.partial(_fla, op, problem, way, args.rounds)
    ready = compiled_calls(calls, judge)
    if direction == "decode":
        ready.entries[COPY] = copy_of(inputs.initial_state)
    return row | timed(name, ready, args.rounds, rivals) | {"error_ratio": errors}


def _fla(op: str, problem: Any, way: str, rounds: int) -> float:
    """The median device time of fla's kernels in microseconds, of the backward without the forward."""
    import torch
    from fla.ops.gla import chunk_gla, fused_recurrent_gla
    from fla.ops.kda import chunk_kda, fused_recurrent_kda
    from fla.ops.simple_gla import chunk_simple_gla, fused_recurrent_simple_gla

    p, device = problem, {"device": "cuda"}
    if p.group_size > 1:
        raise ValueError("heads of queries are repeated there")
    torch.manual_seed(0)
    keys, values = (p.batch, p.length, p.num_value_heads, p.head_dim), (p.batch, p.length, p.num_value_heads)
    q, k = (torch.nn.functional.normalize(torch.randn(keys, **device), dim=-1).to(torch.bfloat16) for _ in range(2))
    v = torch.randn(*values, p.v_head_dim, **device, dtype=torch.bfloat16)
    shape = {"channel": keys, "constant": keys[2:3]}.get(p.gate, values)
    g = -torch.nn.functional.softplus(torch.randn(shape, **device))
    state = torch.zeros(p.batch, p.num_value_heads, p.head_dim, p.v_head_dim, **device) if p.has_initial_state else None
    is_one = p.length == 1
    rule = (fused_recurrent_gla if is_one else chunk_gla) if op == "gla" else chunk_simple_gla
    if op != "gla" and is_one:
        rule = fused_recurrent_simple_gla
    if op == "kda":
        rule = fused_recurrent_kda if is_one else chunk_kda
    word = "gk" if op == "gla" and is_one else "g_gamma" if p.gate == "constant" else "g"
    operands = [q, k, v, g]
    if op == "kda":
        operands.append(torch.rand(values, **device))
    if way == "bwd":
        operands = [x.requires_grad_() for x in operands]
    dout = torch.randn_like(v)

    def forward() -> Any:
        given = {word: operands[3], "scale": p.scale, "initial_state": state, "output_final_state": True}
        if op == "kda":
            given["beta"] = operands[4]
        return rule(*operands[:3], **given)[0]

    def prepared() -> Any:
        if way == "fwd":
            return lambda: torch.no_grad()(forward)()
        out = forward()
        return lambda: torch.autograd.grad(out, operands, dout)

    return median_us(prepared, rounds)


if __name__ == "__main__":
    sys.exit(main())
