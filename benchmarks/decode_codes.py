"""Decoding over a cache of codes beside the same over one of 16 bits, by configs; and what flushing the cache costs.

    python benchmarks/decode_codes.py --compile 16 && python benchmarks/decode_codes.py --out decode_codes.json

Every point is raced in one group: the untuned configs of both caches, others of the kernel ``triton``, and a program
that reads as many bytes as the codes have; once behind a flush that writes, and once behind that of every measurement,
which reads, so that no line of the last-level cache is dirty when a kernel starts: a line that is written back costs
the kernel that displaces it. Outputs are judged at points of few tokens, as errors over what
is allowed; elsewhere they are compared with the untuned config's. ``--other`` races fewer configs on caches of codes of
other kinds, ``--judge`` judges narrow configs on feature problems instead. ``--compile`` only fills Triton's cache,
with so many processes, and needs no GPU.
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

CACHES = {
    "16 bits": "dtype=bfloat16",
    "float8": "dtype=bfloat16 kv=float8_e4m3fn kvscale=tensor",
    # A head's tokens of a page lie together: 8 KB, not 128 bytes.
    "float8 by heads": "layout=hnd dtype=bfloat16 kv=float8_e4m3fn kvscale=tensor",
}
JUDGED = {
    **CACHES,
    "float8, tokens": "dtype=bfloat16 kv=float8_e4m3fn kvscale=token",
    "int8": "dtype=bfloat16 kv=int8 kvscale=head",
}
HEADS, UNITS = 8, 132
# Tokens of all sequences up to which outputs are judged.
MOST_JUDGED = 16384
WIDE, NARROW = {"block_q": 16}, {"block_q": 8}


def tile(rows: dict[str, Any], block_k: int, num_warps: int, num_stages: int, each: int | None, **more: Any) -> Any:
    """The knobs of a config with ``each`` programs for each multiprocessor; None is one a sequence."""
    return {**rows, "block_k": block_k, "num_warps": num_warps, "num_stages": num_stages, "each": each, **more}


# What the untuned config was before tiles of eight rows.
BEFORE = (tile(WIDE, 128, 4, 5, 2), tile(WIDE, 128, 4, 5, None))
# The first ones of each cache are raced at every point, all of them at the first.
FEW = {"16 bits": 3, "float8": 9, "float8 by heads": 3}
TILES = {
    "16 bits": (
        tile(NARROW, 64, 4, 5, 2),
        tile(NARROW, 64, 4, 5, None),
        tile(NARROW, 32, 2, 6, 4),
        tile(NARROW, 64, 4, 4, 3),
        tile(NARROW, 32, 2, 6, 5),
        tile(NARROW, 32, 2, 8, 4),
        tile(NARROW, 64, 2, 5, 3),
        tile(NARROW, 128, 4, 4, 1),
    ),
    "float8": (
        *BEFORE,
        tile(NARROW, 64, 2, 6, 4),
        tile(NARROW, 32, 2, 8, 6),
        tile(NARROW, 32, 1, 8, 8),
        tile(NARROW, 64, 2, 6, None),
        tile(NARROW, 64, 2, 6, 5),
        tile(NARROW, 64, 2, 8, 3),
        tile(WIDE, 64, 2, 6, 4),
        tile(NARROW, 64, 2, 6, 6, max_registers=168),
        tile(NARROW, 64, 2, 6, 3),
        tile(NARROW, 32, 2, 8, 4),
        tile(NARROW, 128, 2, 4, 4),
        tile(NARROW, 32, 2, 6, 8),
    ),
}
# Keys of a tile, warps and stages of narrow ones of clusters, which are raced where the untuned config has a cluster.
CLUSTERED = {"16 bits": ((128, 4, 3), (64, 4, 3), (32, 2, 4)), "float8": ((64, 2, 3), (32, 2, 4), (32, 1, 4))}
TILES["float8 by heads"] = TILES["float8"][:5]
POINTS = ("32x4k", "4x4k", "1x64k", "8x32k", "64x2k", "1x1k")
# Changes of a problem by the name behind a point's size, and points of them.
CHANGES = {
    "uneven": {"workload": "exp"},
    "two": {"q_len": 2},
    "h64": {"head_dim": 64, "v_head_dim": 64},
    "contiguous": {"page_size": 0},
    "pages16": {"page_size": 16},
    "tokens": {"kv_scale": "token"},
    "int8": {"kv_dtype": "int8"},
}
OTHER_POINTS = (
    *("32x4k uneven", "4x4k uneven", "8x32k uneven", "32x4k two", "4x4k two", "32x4k h64", "4x4k h64", "32x4k tokens"),
    *("32x4k int8", "4x4k pages16", "32x4k contiguous", "4x4k contiguous", "32x4k", "4x4k", "1x4k", "1x2k", "4x1k"),
)
OTHER_TILES = (*BEFORE, tile(NARROW, 64, 2, 6, 4), tile(NARROW, 64, 2, 6, None))
# What a sweep before tiles of eight rows found at points without a change.
SWEPT = (tile(WIDE, 64, 2, 5, 2), tile(WIDE, 64, 2, 5, 8))


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--points", help="batch x length, and a change; with commas between them")
    parser.add_argument("--other", action="store_true", help="race codes of other kinds, behind a flush that reads")
    parser.add_argument("--judge", action="store_true", help="judge narrow configs on feature problems instead")
    parser.add_argument("--compile", type=int, help="compile in so many processes, and do no more")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    points = args.points.split(",") if args.points else OTHER_POINTS if args.other else POINTS
    judged = list(judged_problems()) if args.judge else []
    if args.compile:
        work = judged or [one for point in points for one in configs_of(point, args.other)]
        with ProcessPoolExecutor(args.compile, mp_context=get_context("spawn")) as pool:
            for said in pool.map(compiled, work):
                print(said, flush=True)
        return 0
    rows = []
    for point in [] if judged else points:
        rows.append(raced(point, args.rounds, args.other))
        if args.out is not None:
            args.out.write_text(json.dumps({"rows": rows}, indent=1) + "\n")
    return sum([not judge(*case) for case in judged])


def problem_of(point: str, cache: str) -> Any:
    """The problem of Llama 3 8B, pages of 64, at a point."""
    from attn_tune.ops.registry import get_op
    from attn_tune.schema.signature import Signature

    op = get_op("paged_decode")
    size, _, change = point.partition(" ")
    batch, _, length = size.partition("x")
    keys = int(length.removesuffix("k")) * 1024
    text = f"paged_decode/v1 b={batch} t=1 s={keys} n=32 k={HEADS} h=128 v=128 page=64 {JUDGED[cache]}"
    return dataclasses.replace(op.from_signature(Signature.parse(text, op.fields)), **CHANGES.get(change, {}))


def search() -> Any:
    """The configs of the kernel, and rules about them."""
    from attn_tune.kernels.registry import get_kernel

    return get_kernel("paged_decode/triton").searches["fwd"]


def device() -> Any:
    """The device that configs are for."""
    from attn_tune.schema.device import Device

    return Device(platform="cuda", family="sm_90", variant="nvidia-h200", units=UNITS)


def configs_of(point: str, other: bool) -> Iterator[tuple[str, Any, Any]]:
    """A cache, the problem and a config, for each that is raced; the untuned ones first."""
    for cache in ("float8",) if other else CACHES:
        problem = problem_of(point, cache)
        seen = [search().heuristic(problem, device())]
        tiles = TILES[cache] if point == POINTS[0] else TILES[cache][: FEW[cache]]
        for knobs in (OTHER_TILES if " " in point else OTHER_TILES + SWEPT) if other else tiles:
            each = knobs["each"]
            if each is not None or problem.batch * HEADS >= UNITS:
                own = {name: value for name, value in knobs.items() if name != "each"}
                seen.append(search().config(**own, num_programs=each and max(1, each * UNITS // HEADS)))
        if seen[0].cluster is not None:
            seen[1:] = [
                dataclasses.replace(seen[0], **NARROW, block_k=keys, num_warps=warps, num_stages=stages)
                for keys, warps, stages in CLUSTERED.get(cache, ())
            ]
        for config in dict.fromkeys(seen):
            if search().infeasible(problem, device(), config) is None:
                yield cache, problem, config


def judged_problems() -> Iterator[tuple[str, Any, Any]]:
    """Feature problems of every kind of cache, each with a narrow config: a name, the problem and the config."""
    from attn_tune.ops.paged_decode.features import features

    for cache in JUDGED:
        for number, problem in enumerate(features(problem_of("4x4k", cache))):
            warps = 4 if cache == "16 bits" else 2
            shared = {"num_programs": 5} if number % 2 else {"cluster": 2}
            config = search().config(**NARROW, block_k=64 // (1 + number % 2), num_warps=warps, num_stages=5, **shared)
            yield f"{cache} {number}", problem, config


def call_of(problem: Any, config: Any) -> Any:
    """The kernel's function of its operands."""
    from attn_tune.ops.contract import load

    return functools.partial(load(search().call), problem, config)


def compiled(work: tuple[str, Any, Any]) -> str:
    """One line about a config that was compiled into Triton's cache."""
    import jax
    import jax.numpy as jnp

    from attn_tune.kernels.lang.triton.compile import record_compiles
    from attn_tune.kernels.lang.triton.target import compile_target
    from attn_tune.ops.contract import load
    from attn_tune.ops.registry import get_op

    name, problem, config = work
    make = functools.partial(load(get_op("paged_decode").inputs), problem, "fwd")
    operands = jax.eval_shape(make, jax.ShapeDtypeStruct((), jnp.int32))
    about = f"{problem.batch}x{problem.kv_len} {name} {named(config)}"
    try:
        with compile_target(90), record_compiles() as found:
            jax.jit(call_of(problem, config)).trace(operands).lower(lowering_platforms=("cuda",))
    except Exception as error:  # any error is this config's result
        return f"{about}: {type(error).__name__} {str(error)[:100]}"
    return f"{about}: " + ", ".join(
        f"{k.registers} registers, {k.spill_bytes} spilled, {k.shared_bytes} shared" for k in found[:1]
    )


def named(config: Any) -> str:
    """The knobs of a config that are not at their defaults, as text."""
    fields = dataclasses.fields(config)
    return " ".join(f"{f.name}={getattr(config, f.name)}" for f in fields if getattr(config, f.name) != f.default)


def judge(name: str, problem: Any, config: Any) -> bool:
    """Prints the errors of a config over what is allowed; returns whether it is right."""
    import jax

    from attn_tune.ops.contract import load
    from attn_tune.ops.registry import get_op

    op = get_op("paged_decode")
    operands = jax.jit(functools.partial(load(op.inputs), problem, "fwd"))(1)
    errors = errors_of(problem, jax.jit(call_of(problem, config))(operands), answers_of(problem, operands))
    print(f"{name}: {' '.join(f'{e.output} {e.ratio:.3g}' for e in errors)}  {named(config)}", flush=True)
    return all(e.ratio <= 1 for e in errors)


def answers_of(problem: Any, operands: Any) -> list[Any]:
    """The outputs of the op's reference and of its baseline."""
    import jax

    from attn_tune.ops.contract import load
    from attn_tune.ops.registry import get_op

    op = get_op("paged_decode")
    return [jax.jit(functools.partial(load(path), problem, "fwd"))(operands) for path in (op.reference, op.baseline)]


def errors_of(problem: Any, outputs: Any, answers: list[Any]) -> Any:
    """The errors of outputs against those of the reference, by what the baseline's allow."""
    from attn_tune.ops.registry import get_op
    from attn_tune.ops.tolerance import compare

    return compare(outputs, *answers, get_op("paged_decode").outputs(problem, "fwd"))


def raced(point: str, rounds: int, other: bool) -> dict[str, Any]:
    """Microseconds of every config at a point, by flush, and the errors of its outputs."""
    import jax
    import numpy as np
    from paged_decode_peers import read

    from attn_tune.ops.contract import load
    from attn_tune.ops.registry import get_op
    from attn_tune.tuner.protocol import MeasurePolicy
    from attn_tune.tuner.work.measure import race
    from attn_tune.tuner.work.timers.choose import choose_timer

    runs, notes, operands, first, answers = {}, {}, {}, {}, {}
    for cache, problem, config in configs_of(point, other):
        if cache not in operands:
            operands[cache] = jax.jit(functools.partial(load(get_op("paged_decode").inputs), problem, "fwd"))(0)
            if problem.batch * problem.kv_len <= MOST_JUDGED:
                answers[cache] = answers_of(problem, operands[cache])
        name = f"{cache}: {named(config)}"
        try:
            call = jax.jit(call_of(problem, config)).lower(operands[cache]).compile()
            outputs = call(operands[cache])
            if cache in answers:
                notes[name] = " ".join(f"{e.output} {e.ratio:.3g}" for e in errors_of(problem, outputs, answers[cache]))
            out = np.asarray(outputs["out"], np.float32)
            first.setdefault(cache, out)
            notes.setdefault(name, f"{np.abs(out - first[cache]).max() / np.abs(first[cache]).max():.2g}")
        except Exception as error:  # any error is this config's result
            print(f"   failed  {name}: {type(error).__name__}: {str(error)[:200]}", flush=True)
            continue
        runs[name] = functools.partial(call, operands[cache])
    problem = problem_of(point, "float8")
    function, given = read(problem, operands["float8"])
    runs["read as many bytes as float8 has"] = functools.partial(jax.jit(function).lower(*given).compile(), *given)
    timer, policy, times = choose_timer(), MeasurePolicy(rounds=rounds, rounds_max_s=10.0), {}
    for kind, flush in flushes().items():
        if other and kind == "writing":
            continue
        measured = race(list(runs.values()), timer=timer, policy=policy, flush=flush, round_id=point).measurements
        times[kind] = {name: round(m.median_ns / 1e3, 2) for name, m in zip(runs, measured, strict=True)}
        best = [
            min((us for name, us in times[kind].items() if name.startswith(f"{c}:")), default=math.nan)
            for c in ("16 bits", "float8")
        ]
        about = "" if other else f": best of 16 bits over best of float8 {best[0] / best[1]:.3f}"
        print(f"== {point}, flush by {kind}{about}")
        for name, us in times[kind].items():
            print(f"{us:9.2f}  {notes.get(name, ''):22.22s} {name}", flush=True)
    return {"point": point, "us": times, "errors": notes}


def flushes() -> dict[str, Any]:
    """A flush that leaves dirty lines in the cache, and that of every measurement."""
    import jax
    import jax.numpy as jnp

    from attn_tune.devices.identity import current_device
    from attn_tune.tuner.work.measure import make_flush

    device = current_device()
    add = jax.jit(lambda x: x + 1, donate_argnums=0)
    buffer = [jnp.zeros((max(1, device.l2_bytes // 2),), jnp.uint32)]

    def write() -> Any:
        buffer[0] = add(buffer[0])
        return buffer[0]

    return {"writing": write, "reading": make_flush(device)}


if __name__ == "__main__":
    sys.exit(main())
