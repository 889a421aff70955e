"""Decoding over a cache of codes beside the same over one of 16 bits, by configs; and what flushing the cache costs.

    python benchmarks/decode_codes.py --compile 16 && python benchmarks/decode_codes.py --out decode_codes.json

Every point is raced in one group: the untuned configs of both caches, others of the kernel ``triton``, and a program
that reads as many bytes as the codes have. ``--flush read`` reads a second buffer after the one that a flush writes, so
that no line of the last-level cache is dirty when a kernel starts: a line that is written back costs the kernel that
displaces it. Outputs are judged at points of few tokens, as errors over what is allowed; elsewhere they are compared
with the untuned config's. ``--compile`` only fills Triton's cache, with so many processes. Needs a GPU, of which
``--compile`` wants none.
"""

import argparse
import dataclasses
import functools
import json
import math
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

POINTS = ("1x1k", "1x64k", "4x4k", "32x4k", "64x4k", "16x32k", "128x8k")
CACHES = {
    "16 bits": "",
    "float8": " kv=float8_e4m3fn kvscale=tensor",
}
HEADS, UNITS = 8, 132
# Tokens of all sequences up to which outputs are judged.
MOST_JUDGED = 16384
# Keys of a tile, warps, stages, programs for each multiprocessor (none: one a sequence), values by pairs.
TILES = {
    "16 bits": ((64, 4, 5, 2, False), (64, 2, 6, 2, False), (128, 4, 3, 2, False), (64, 4, 5, None, False)),
    "float8": (
        (64, 2, 6, 4, False),
        (64, 2, 6, 4, True),
        (64, 2, 5, 5, True),
        (64, 2, 8, 3, True),
        (128, 4, 4, 2, True),
        (128, 4, 6, 2, True),
        (64, 2, 8, 4, True),
        (32, 2, 8, 6, True),
        (64, 2, 6, None, False),
        (64, 2, 6, None, True),
    ),
}
CLUSTERED = {"16 bits": ((64, 4, 5, False),), "float8": ((128, 4, 5, False), (128, 4, 4, True), (64, 2, 5, True))}


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--points", default=",".join(POINTS), help="batch x length, with commas between them")
    parser.add_argument("--tiles", type=Path, help="a JSON file of other TILES")
    parser.add_argument("--compile", type=int, help="compile in so many processes, and do no more")
    parser.add_argument("--flush", choices=("write", "read"), default="write")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    tiles = TILES if args.tiles is None else json.loads(args.tiles.read_text())
    points = args.points.split(",")
    if args.compile:
        work = [(point, cache, config) for point in points for cache, config in configs_of(point, tiles)]
        with ProcessPoolExecutor(args.compile, mp_context=get_context("spawn")) as pool:
            for said in pool.map(compiled, work):
                print(said, flush=True)
        return 0
    rows = []
    for point in points:
        rows.append(raced(point, tiles, args.flush, args.rounds))
        if args.out is not None:
            args.out.write_text(json.dumps({"flush": args.flush, "rows": rows}, indent=1) + "\n")
    return 0


def problem_of(point: str, cache: str) -> Any:
    """The problem of Llama 3 8B, pages of 64, at a point."""
    from attn_tune.ops.registry import get_op
    from attn_tune.schema.signature import Signature

    op = get_op("paged_decode")
    batch, _, length = point.partition("x")
    keys = int(length.removesuffix("k")) * 1024
    text = f"paged_decode/v1 b={batch} t=1 s={keys} n=32 k={HEADS} h=128 v=128 page=64 dtype=bfloat16{CACHES[cache]}"
    return op.from_signature(Signature.parse(text, op.fields))


def configs_of(point: str, tiles: Any) -> Iterator[tuple[str, Any]]:
    """Pairs of a cache and a config of its; the untuned ones first."""
    from attn_tune.kernels.registry import get_kernel
    from attn_tune.schema.device import Device

    device = Device(platform="cuda", family="sm_90", variant="nvidia-h200", units=UNITS)
    search = get_kernel("paged_decode/triton").searches["fwd"]
    for cache in CACHES:
        problem = problem_of(point, cache)
        seen = [search.heuristic(problem, device)]
        for block_k, warps, stages, each, pairs in tiles[cache]:
            if each is None and problem.batch * HEADS < UNITS:
                continue
            programs = None if each is None else max(1, each * UNITS // HEADS)
            extra = {"value_pairs": True} if pairs else {}
            seen.append(
                search.config(
                    block_q=16, block_k=block_k, num_warps=warps, num_stages=stages, num_programs=programs, **extra
                )
            )
        if problem.batch == 1 and problem.kv_len <= 4096:
            for block_k, warps, stages, pairs in CLUSTERED[cache]:
                extra = {"value_pairs": True} if pairs else {}
                tile = {"block_q": 16, "block_k": block_k, "num_warps": warps, "num_stages": stages}
                seen.append(search.config(cluster=8, **tile, **extra))
        for config in dict.fromkeys(seen):
            if search.infeasible(problem, device, config) is None:
                yield cache, config


def call_of(problem: Any, config: Any) -> Any:
    """The kernel's function of its operands."""
    from attn_tune.kernels.registry import get_kernel
    from attn_tune.ops.contract import load

    return functools.partial(load(get_kernel("paged_decode/triton").searches["fwd"].call), problem, config)


def compiled(work: tuple[str, str, Any]) -> str:
    """One line about a config that was compiled into Triton's cache."""
    import jax
    import jax.numpy as jnp

    from attn_tune.kernels.lang.triton.compile import record_compiles
    from attn_tune.kernels.lang.triton.target import compile_target
    from attn_tune.ops.contract import load
    from attn_tune.ops.registry import get_op

    point, cache, config = work
    problem = problem_of(point, cache)
    make = functools.partial(load(get_op("paged_decode").inputs), problem, "fwd")
    operands = jax.eval_shape(make, jax.ShapeDtypeStruct((), jnp.int32))
    try:
        with compile_target(90), record_compiles() as found:
            jax.jit(call_of(problem, config)).trace(operands).lower(lowering_platforms=("cuda",))
    except Exception as error:  # any error is this config's result
        return f"{point} {cache} {named(config)}: {type(error).__name__} {str(error)[:100]}"
    needs = ", ".join(f"{k.registers} registers, {k.spill_bytes} spilled, {k.shared_bytes} shared" for k in found[:1])
    return f"{point} {cache} {named(config)}: {needs}"


def named(config: Any) -> str:
    """The knobs of a config that are not at their defaults, as text."""
    fields = dataclasses.fields(config)
    return " ".join(f"{f.name}={getattr(config, f.name)}" for f in fields if getattr(config, f.name) != f.default)


def raced(point: str, tiles: Any, flush_kind: str, rounds: int) -> dict[str, Any]:
    """Microseconds of every config at a point, and the errors of its outputs."""
    import jax
    import numpy as np
    from paged_decode_peers import read

    from attn_tune.devices.identity import current_device
    from attn_tune.ops.contract import load
    from attn_tune.ops.registry import get_op
    from attn_tune.ops.tolerance import compare
    from attn_tune.tuner.protocol import MeasurePolicy
    from attn_tune.tuner.work.measure import race
    from attn_tune.tuner.work.timers.choose import choose_timer

    op = get_op("paged_decode")
    runs, names, notes = [], [], {}
    operands, first, answers = {}, {}, {}
    for cache, config in configs_of(point, tiles):
        problem = problem_of(point, cache)
        if cache not in operands:
            operands[cache] = jax.jit(functools.partial(load(op.inputs), problem, "fwd"))(0)
            if problem.batch * problem.kv_len <= MOST_JUDGED:
                paths = (op.reference, op.baseline)
                answers[cache] = [jax.jit(functools.partial(load(f), problem, "fwd"))(operands[cache]) for f in paths]
        name = f"{cache}: {named(config)}"
        try:
            call = jax.jit(call_of(problem, config)).lower(operands[cache]).compile()
            outputs = call(operands[cache])
            out = np.asarray(outputs["out"], np.float32)
        except Exception as error:  # any error is this config's result
            notes[name] = f"{type(error).__name__}: {str(error)[:200]}"
            continue
        first.setdefault(cache, out)
        if cache in answers:
            judged = compare(outputs, *answers[cache], op.outputs(problem, "fwd"))
            notes[name] = " ".join(f"{e.output} {e.ratio:.3g}" for e in judged)
        else:
            notes[name] = f"{np.abs(out - first[cache]).max() / np.abs(first[cache]).max():.2g}"
        names.append(name)
        runs.append(functools.partial(call, operands[cache]))
    problem = problem_of(point, "float8")
    function, given = read(problem, operands["float8"])
    names.append("read as many bytes as float8 has")
    runs.append(functools.partial(jax.jit(function).lower(*given).compile(), *given))
    measured = race(
        runs,
        timer=choose_timer(),
        policy=MeasurePolicy(rounds=rounds, rounds_max_s=10.0),
        flush=flush_of(current_device(), flush_kind),
        round_id=point,
    ).measurements
    times = {name: round(m.median_ns / 1e3, 2) for name, m in zip(names, measured, strict=True)}
    best = [min((us for name, us in times.items() if name.startswith(cache)), default=math.nan) for cache in CACHES]
    ratio = best[0] / best[1]
    print(f"== {point} ({flush_kind}) 16 bits over float8: {ratio:.3f}")
    for name, us in times.items():
        print(f"{us:9.2f}  {notes.get(name, '')!s:24.24s} {name}", flush=True)
    for name in notes.keys() - times.keys():
        print(f"   failed  {name}: {notes[name]}")
    return {"point": point, "us": times, "ratio": round(ratio, 3), "errors": notes}


def flush_of(device: Any, kind: str) -> Any:
    """The flush of every measurement, or one that leaves no dirty line behind."""
    import jax
    import jax.numpy as jnp

    from attn_tune.tuner.work.measure import make_flush

    write = make_flush(device)
    if kind == "write" or write is None:
        return write
    other = jnp.ones((max(1, device.l2_bytes // 2),), jnp.uint32)
    total = jax.jit(jnp.max).lower(other).compile()

    def flush() -> Any:
        write()
        return total(other)

    return flush


if __name__ == "__main__":
    sys.exit(main())
