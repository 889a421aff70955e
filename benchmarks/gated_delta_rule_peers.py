"""Kernels of the gated delta rule beside one another, and beside fla: one device, interleaved, device time, cold cache.

    python benchmarks/gated_delta_rule_peers.py --compile       # fills Triton's cache, without a GPU, in parallel
    python benchmarks/gated_delta_rule_peers.py --out delta.json

For each point the untuned configs of our kernels and those of ``_CHANGES``; with ``--launches`` each launch of the
untuned ``triton`` by itself, and with ``--fla`` and ``--flashinfer`` these projects' kernels, where torch and they can
be imported (by torch's profiler in another process; fla's own tuning takes most of a minute, and FlashInfer compiles
its prefill at first). A row says microseconds, and the worst error of each of ours on inputs at the edges, as a
multiple of what is allowed. A GPU is needed.
"""

import argparse
import dataclasses
import functools
import importlib.util
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from gated_delta_rule_rivals import RIVALS
from paged_decode_peers import versions
from untuned_peers import Compiled, copy_of, short, timed

from attn_tune.ops.gated_delta_rule.problem import NAME, Problem

# XLA's kernel takes most of the run beyond.
_SHORT = 8192
# What decoding is held against.
COPY = "a copy of the states"
# Decoding, one state after the other: each call also writes back what the one before it left in the cache.
_LAYERS = 8
IN_TURN = f"one of {_LAYERS} calls in turn"
# Heads of keys and of values, and tokens, of the forwards without decoding.
_FORWARDS = ((16, 64), 32768), ((16, 64), 8192), ((16, 32), 32768), ((2, 8), 32768), ((8, 32), 8192)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--compile", action="store_true", help="only compile, for an H100 or H200")
    parser.add_argument("--only", nargs="*", default=[""], help="points whose name contains one of these")
    parser.add_argument("--peers", nargs="*", default=[""], help="peers whose name contains one of these")
    parser.add_argument("--launches", action="store_true", help="time each launch of the untuned triton by itself")
    for rival in RIVALS:
        parser.add_argument(f"--{rival}", action="store_true", help=f"time {rival} too")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=140.0, help="no point begins later than that")
    parser.add_argument("--jobs", type=int, default=12, help="processes that compile")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args(arguments)
    points = [p for p in _points() if any(word in p[0] for word in args.only)]
    if args.compile:
        return _compile_all(points, args.jobs)
    report: dict[str, Any] = {"versions": versions(), "rows": []}
    end = time.monotonic() + args.seconds
    for point in points:
        if time.monotonic() > end:
            print(f"{point[0]}: no time left")
            continue
        report["rows"].append(_row(*point, args))
        if args.out:
            args.out.write_text(json.dumps(report, indent=1) + "\n")
    return 0


def _points() -> list[tuple[str, Problem, str]]:
    found = []
    for heads, length in _FORWARDS:
        found.append((f"fwd {heads[0]}/{heads[1]} 1x{length}", _problem(heads, 1, length), "fwd"))
    for batch in (1, 8, 32, 128):
        problem = _problem((32, 32), batch, 1, has_initial_state=True, has_final_state=True)
        found.append((f"decode H32 {batch}x1", problem, "fwd"))
    for length in (32768, 8192):
        found.append((f"bwd 16/32 1x{length}", _problem((16, 32), 1, length), "bwd"))
        alone = _problem((16, 32), 1, length, has_final_state=False)
        found.append((f"bwd 16/32 1x{length}, no states", alone, "bwd"))
    return found


def _problem(heads: tuple[int, int], batch: int, length: int, **states: bool) -> Problem:
    return Problem(
        batch=batch,
        length=length,
        num_key_heads=heads[0],
        num_value_heads=heads[1],
        head_dim=128,
        v_head_dim=128,
        scale=128**-0.5,
        **(states or {"has_final_state": True}),
    )


def _peers(problem: Problem, direction: str) -> Iterator[tuple[str, str, Any]]:
    """A name, a kernel and a config for each of ours."""
    from attn_tune.devices.identity import current_device
    from attn_tune.kernels.registry import kernels_of
    from attn_tune.schema.device import Device

    device = current_device()
    if device.platform != "cuda":
        device = Device(platform="cuda", family="sm_90", variant="nvidia-h200", units=132)
    for spec in kernels_of(NAME):
        name = spec.name
        search = spec.searches.get(direction)
        if search is None or spec.unsupported(problem, direction, device):
            continue
        if name == "xla" and (problem.length > _SHORT or direction == "bwd"):
            continue
        start = search.heuristic(problem, device)
        yield f"{name} untuned", name, start
        for change in _CHANGES.get((name, direction if problem.length > 1 else "decode"), ()):
            config = dataclasses.replace(start, **change)
            if config != start and search.infeasible(problem, device, config) is None:
                yield f"{name} {' '.join(f'{k}={v}' for k, v in change.items())}", name, config


_PREPARED: Sequence[Mapping[str, Any]] = ({"prepare_registers": 168}, {"prepare_registers": None})
_WALKED: Sequence[Mapping[str, Any]] = (
    {"num_stages": 2},
    {"block_v": 32},
    {"block_v": 32, "num_stages": 1},
)
_CHANGES: Mapping[tuple[str, str], Sequence[Mapping[str, Any]]] = {
    ("triton", "fwd"): ({"prepare_registers": 168},),
    ("triton_hopper", "fwd"): (
        {"num_stages": 2},
        {"groups": 2},
        {"groups": 2, "num_stages": 2},
        {"prepare_registers": 168},
        {"segments": 1},
        {"segments": 2},
        {"segments": 4},
        {"segments": 8},
        {"segments": 16},
    ),
    ("triton", "bwd"): ({"prepare_registers": 168},),
    ("triton_hopper", "bwd"): (
        {"prepare_registers": None},
        {"prepare_registers": 128},
        {"gradient_stages": 2},
    ),
    ("triton_steps", "decode"): (
        {"block_v": 32, "num_warps": 4},
        {"block_v": 32, "num_warps": 2},
        {"block_v": 16, "num_warps": 1},
        {"block_v": 16, "num_warps": 2},
        {"block_v": 8, "num_warps": 1},
        {"block_v": 64, "num_warps": 8},
        {"block_v": 128, "num_warps": 8},
        {"block_v": 128, "num_warps": 16},
    ),
}


def _call(kernel: str, problem: Problem, direction: str, config: Any) -> Any:
    from attn_tune.kernels.registry import get_kernel
    from attn_tune.ops.contract import load

    return functools.partial(load(get_kernel(f"{NAME}/{kernel}").searches[direction].call), problem, config)


def _compile_all(points: Sequence[tuple[str, Problem, str]], jobs: int) -> int:
    calls = [(k, p, d, c) for _, p, d in points for name, k, c in _peers(p, d) if k != "xla"]
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        for call, said in zip(calls, pool.map(_compile_one, calls), strict=True):
            print(call[0], call[3], said, flush=True)
    return 0


def _compile_one(call: tuple[str, Problem, str, Any]) -> str:
    import jax
    import jax.numpy as jnp

    from attn_tune.kernels.lang.triton.compile import record_compiles
    from attn_tune.kernels.lang.triton.target import compile_target
    from attn_tune.ops.recurrent.inputs import make_inputs

    jax.config.update("jax_platforms", "cpu")
    kernel, problem, direction, config = call
    begin = time.monotonic()
    inputs = jax.eval_shape(functools.partial(make_inputs, problem, direction), jax.ShapeDtypeStruct((), jnp.int32))
    try:
        with compile_target(90), record_compiles() as compiled:
            jax.jit(_call(kernel, problem, direction, config)).trace(inputs).lower(lowering_platforms=("cuda",))
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:200]}"
    launches = [f"{c.name} {c.registers} registers, {c.spill_bytes} spilled, {c.shared_bytes} shared" for c in compiled]
    return f"{time.monotonic() - begin:.0f} s: {'; '.join(launches)}"


def _row(name: str, problem: Problem, direction: str, args: argparse.Namespace) -> dict[str, Any]:
    import jax

    from attn_tune.ops.contract import load
    from attn_tune.ops.registry import ops
    from attn_tune.ops.tolerance import compare

    op, begin = ops()[NAME], time.monotonic()
    inputs, hard = (
        jax.jit(functools.partial(load(op.inputs), variant, direction))(0)
        for variant in (problem, dataclasses.replace(problem, at_edges=True))
    )
    exact, plain = (
        jax.jit(functools.partial(load(path), problem, direction))(hard) for path in (op.reference, op.baseline)
    )
    ready, errors = Compiled({}, {}), {}
    for peer, kernel, config in _peers(problem, direction):
        if not any(word in peer for word in args.peers):
            continue
        try:
            compiled = jax.jit(_call(kernel, problem, direction, config)).lower(inputs).compile()
            judged = compare(compiled(hard), exact, plain, op.outputs(problem, direction))
            errors[peer] = round(max(e.ratio for e in judged), 3)
            ready.entries[peer] = functools.partial(compiled, inputs)
            if args.launches and kernel in _LAUNCHES and peer.endswith("untuned"):
                ready.entries.update(_LAUNCHES[kernel](problem, direction, config, inputs))
        except Exception as error:  # any error of a peer is that peer's result
            ready.cannot[peer] = short(error)
    del exact, plain, hard
    if problem.length == 1:
        ready.entries[COPY] = copy_of(inputs.initial_state)
        ready.entries[IN_TURN] = _in_turn(problem, inputs)
    rivals = {
        rival: functools.partial(times, problem, direction, args.rounds)
        for rival, times in RIVALS.items()
        if getattr(args, rival) and importlib.util.find_spec(rival)
    }
    times = timed(name, ready, args.rounds, rivals, seconds=8.0)
    us = times["us"]
    if IN_TURN in us:
        us[IN_TURN] = round(us[IN_TURN] / _LAYERS, 2)
    print(f"\n{name}  ({time.monotonic() - begin:.0f} s)", flush=True)
    for peer in sorted(us, key=us.__getitem__):
        print(f"  {us[peer]:10.1f} us  error {errors.get(peer, '-')}  {peer}", flush=True)
    for peer, reason in times["cannot"].items():
        print(f"  {peer} cannot: {reason}", flush=True)
    moved = op.bytes_moved(problem, direction)
    return {
        "point": name,
        "signature": problem.signature.text,
        "bytes": moved,
        "us": us,
        "tb_s": {peer: round(moved / one / 1e6, 3) for peer, one in us.items()},
        "error_ratio": errors,
        "timer": times["timer"],
        "cannot": times["cannot"],
    }


def _in_turn(problem: Problem, inputs: Any) -> Any:
    """Calls of the untuned ``triton_steps`` on states of their own, in one program."""
    import jax

    from attn_tune.devices.identity import current_device
    from attn_tune.kernels.registry import get_kernel

    search = get_kernel(f"{NAME}/triton_steps").searches["fwd"]
    call = _call("triton_steps", problem, "fwd", search.heuristic(problem, current_device()))
    layers = [inputs._replace(initial_state=inputs.initial_state + i) for i in range(_LAYERS)]
    return functools.partial(jax.jit(lambda layers: [call(one) for one in layers]).lower(layers).compile(), layers)


def _hopper_launches(problem: Problem, direction: str, config: Any, inputs: Any) -> dict[str, Any]:
    """Each launch of ``triton_hopper`` as a compiled call, on what those before it made."""
    from attn_tune.kernels.gated_delta_rule._triton.prepare import prepare
    from attn_tune.kernels.gated_delta_rule.triton_hopper.forward import constants_of
    from attn_tune.kernels.gated_delta_rule.triton_hopper.scan import scan
    from attn_tune.kernels.gated_delta_rule.triton_hopper.segments import segment_starts

    if direction == "bwd":
        return _hopper_backward_launches(problem, config, inputs)
    found: dict[str, Any] = {}
    chunks, static, plan = constants_of(problem, config, inputs)
    made = functools.partial(_made, found, "hopper ")
    prepared = made("prepare", lambda o: prepare(problem, chunks, o, squares=True), inputs)
    starts = inputs.initial_state
    if static.segments > 1:
        starts = made("segments", lambda o, p: segment_starts(o, p, static, plan), inputs, prepared)
    made("scan", lambda o, p, s: scan(o, p, s, static, plan), inputs, prepared, starts)
    return found


def _hopper_backward_launches(problem: Problem, config: Any, inputs: Any) -> dict[str, Any]:
    """Each launch of the backward of ``triton_hopper``, likewise."""
    from attn_tune.kernels.gated_delta_rule._triton.prepare import prepare
    from attn_tune.kernels.gated_delta_rule.triton_hopper.backward import constants_of
    from attn_tune.kernels.gated_delta_rule.triton_hopper.backward_walk import walk
    from attn_tune.kernels.gated_delta_rule.triton_hopper.gradients import differentiate

    found: dict[str, Any] = {}
    chunks, static, plan, gradients = constants_of(problem, config, inputs)
    made = functools.partial(_made, found, "hopper ")
    prepared = made("prepare", lambda o: prepare(problem, chunks, o, 2, squares=True), inputs.operands)
    kept, walked = made("walks", lambda x, p: walk(x, p, static, plan), inputs, prepared)
    made("gradients", lambda *x: differentiate(*x, static, gradients), inputs, prepared, kept, walked)
    return found


def _made(found: dict[str, Any], prefix: str, name: str, function: Any, *arrays: Any) -> Any:
    """Keeps a compiled call by its name, and returns its result."""
    import jax

    compiled = jax.jit(function).lower(*arrays).compile()
    found[f"launch {prefix}{name}"] = functools.partial(compiled, *arrays)
    return compiled(*arrays)


def _launches(problem: Problem, direction: str, config: Any, inputs: Any) -> dict[str, Any]:
    """Each launch of ``triton`` as a compiled call, on what those before it made."""
    from attn_tune.kernels.gated_delta_rule._triton.prepare import prepare
    from attn_tune.kernels.gated_delta_rule.triton.backward_scan import walk
    from attn_tune.kernels.gated_delta_rule.triton.gradients import differentiate_keys, differentiate_queries
    from attn_tune.kernels.gated_delta_rule.triton.pairs import pair
    from attn_tune.kernels.gated_delta_rule.triton.scan import scan
    from attn_tune.kernels.gated_delta_rule.triton.segments import segment_starts
    from attn_tune.kernels.lang.triton.chunks.static import static_of
    from attn_tune.kernels.lang.triton.chunks.wide import parts_of

    found: dict[str, Any] = {}
    made = functools.partial(_made, found, "")
    o = inputs if direction == "fwd" else inputs.operands
    walk_static = _static(problem, config)
    carries = direction == "bwd"
    parts = parts_of(walk_static) if carries else 1
    prepared = made("prepare", lambda o: prepare(problem, config, o, parts, carries=carries), o)
    for change in _PREPARED:
        other = dataclasses.replace(config, **change)
        made(f"prepare {change}", functools.partial(prepare, problem, other, parts=parts, carries=carries), o)
    if direction == "fwd":
        starts = o.initial_state
        if walk_static.segments > 1:
            starts = made("segments", lambda o, p: segment_starts(o, p, config, walk_static), o, prepared)
        made("scan", lambda o, p, s: scan(o, p, s, config, walk_static), o, prepared, starts)
        return found
    for change in _WALKED:
        other = dataclasses.replace(config, **change)
        made(f"walks {change}", functools.partial(walk, config=other, static=_static(problem, other)), inputs, prepared)
    kept, walked = made("walks", lambda x, p: walk(x, p, config, walk_static), inputs, prepared)
    static = static_of(problem, config, config.gradient_block_v)
    pairs = made("pairs", lambda *x: pair(*x, config, static), inputs, kept, walked)
    given = (pairs, prepared.decays)
    _, shares = made("queries", lambda *x: differentiate_queries(*x, config, static), inputs, kept, *given)
    made("keys", lambda *x: differentiate_keys(*x, config, static), inputs, kept, walked, pairs, shares, given[1])
    return found


_LAUNCHES = {"triton": _launches, "triton_hopper": _hopper_launches}


def _static(problem: Problem, config: Any) -> Any:
    from attn_tune.kernels.lang.triton.chunks.static import static_of

    return static_of(problem, config, config.block_v, getattr(config, "segments", 1))


if __name__ == "__main__":
    sys.exit(main())
