"""Updates of a paged cache beside what JAX has: one run, one device, interleaved, device time, cold cache.

    python benchmarks/paged_append_peers.py --grid llama3-8b-append --out append.json

For each point what ``attn_tune.paged_append`` chooses, its XLA kernel, and the two lines that a decoding loop in plain
JAX has (``scatter``; of 16-bit caches and equal numbers of new tokens). Every call is given a cache of its own, which
it takes over. A row says microseconds, gigabytes that must move a second, and the worst error as a multiple of what is
allowed. ``copy`` reads and writes as many bytes in a row: what a call of this size can reach at best.
"""

import argparse
import functools
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from attn_tune.ops.fields.cache import SAME
from attn_tune.ops.paged_append.operands import Operands
from attn_tune.ops.paged_append.problem import Problem

_COPY = "copy"
_NAMES = ("k", "v", "k_scale", "v_scale")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--grid", default="llama3-8b-append")
    parser.add_argument("--only", default="", help="points whose name contains this")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args(arguments)
    report: dict[str, Any] = {"versions": _versions(), "rows": []}
    for row in _rows(args.grid, args.only, args.rounds):
        report["rows"].append(row)
        args.out.write_text(json.dumps(report, indent=1) + "\n")
    return 0


def _versions() -> dict[str, str]:
    import jax
    import triton

    return {"device": jax.devices()[0].device_kind, "jax": jax.__version__, "triton": triton.__version__}


def _rows(grid: str, only: str, rounds: int) -> Iterator[dict[str, Any]]:
    import jax

    from attn_tune.devices.identity import current_device
    from attn_tune.ops.contract import load
    from attn_tune.ops.paged_append.op import OP
    from attn_tune.ops.paged_append.problem import bytes_moved
    from attn_tune.ops.tolerance import compare
    from attn_tune.tuner.plan.grid import load_grid
    from attn_tune.tuner.protocol import MeasurePolicy
    from attn_tune.tuner.work.in_place import donated_places, fresh_copies
    from attn_tune.tuner.work.measure import make_flush, race
    from attn_tune.tuner.work.timers.choose import choose_timer
    from attn_tune.tuner.work.timers.timer import Timed

    flush, timer = make_flush(current_device()), choose_timer()
    for point in load_grid(grid).points:
        if only not in point.name:
            continue
        problem = OP.from_signature(point.signature)
        operands = jax.jit(functools.partial(load(OP.inputs), problem, "fwd"))(0)
        exact, plain = (
            jax.jit(functools.partial(load(path), problem, "fwd"))(operands) for path in (OP.reference, OP.baseline)
        )
        outputs = OP.outputs(problem, "fwd")
        originals = {output.name: getattr(operands, output.updates) for output in outputs}
        places = donated_places(OP, problem, "fwd", operands)
        entries: dict[str, Timed] = {}
        notes: dict[str, str] = {}
        errors: dict[str, float] = {}
        for name, make in _PEERS.items():
            function = make(problem)
            if isinstance(function, str):
                notes[name] = function
                continue
            program = _donating(function, operands, places)
            found = program(fresh_copies(operands, places))
            judged = compare({o.name: found[o.name] for o in outputs}, exact, plain, outputs, originals)
            errors[name] = round(max(error.ratio for error in judged), 3)
            entries[name] = Timed(run=program, refresh=functools.partial(fresh_copies, operands, places))
        moved = bytes_moved(problem, "fwd")
        data = jax.numpy.ones(max(1, moved // 4), jax.numpy.bfloat16)
        copy = jax.jit(lambda x: x + 1).lower(data).compile()
        entries[_COPY] = Timed(run=functools.partial(copy, data))
        policy = MeasurePolicy(rounds=rounds, rounds_max_s=10.0)
        raced = race(list(entries.values()), timer=timer, policy=policy, flush=flush, round_id=point.name)
        times = {name: m.median_ns / 1e3 for name, m in zip(entries, raced.measurements, strict=True)}
        print(f"{point.name:32s}", "  ".join(f"{n} {us:.2f} us {moved / us / 1e3:.0f}" for n, us in times.items()))
        if wrong := {name: ratio for name, ratio in errors.items() if ratio > 1}:
            print(f"{'':32s} wrong: {wrong}")
        yield {
            "point": point.name,
            "signature": point.signature.text,
            "bytes": moved,
            "us": {name: round(us, 2) for name, us in times.items()},
            "gb_s": {name: round(moved / us / 1e3, 1) for name, us in times.items()},
            "error_ratio": errors,
            "cannot": notes,
        }


def _donating(function: Callable[[Operands], Any], operands: Operands, places: tuple[int, ...]) -> Callable[..., Any]:
    """The compiled ``function``, which takes over the leaves of its operands at ``places``."""
    import jax

    leaves, tree = jax.tree.flatten(operands)
    jitted = jax.jit(lambda *leaves: function(jax.tree.unflatten(tree, leaves)), donate_argnums=places)
    compiled = jitted.lower(*leaves).compile()
    return lambda operands: compiled(*jax.tree.leaves(operands))


def _ours(platform: str | None, p: Problem) -> Callable[[Operands], Any]:
    import attn_tune

    def call(o: Operands) -> Any:
        cache = attn_tune.paged_append(
            o.new_k,
            o.new_v,
            o.k,
            o.v,
            o.kv_lens,
            o.page_table,
            cu_q_lens=o.cu_q_lens,
            layout=p.layout,
            k_scale=o.k_scale,
            v_scale=o.v_scale,
            platform=platform,
        )
        return dict(zip(_NAMES, cache, strict=True))

    return call


def _scatter(p: Problem) -> Callable[[Operands], Any] | str:
    if p.kv_dtype != SAME or p.ragged or p.layout != "nhd" or not p.page_size:
        return "two lines are not enough: codes, uneven numbers of new tokens, another layout, or no pages"
    import jax.numpy as jnp

    def call(o: Operands) -> Any:
        at = o.kv_lens[:, None] - o.new_k.shape[1] + jnp.arange(o.new_k.shape[1])
        page = jnp.take_along_axis(o.page_table, at // p.page_size, axis=1)
        slot = at % p.page_size
        return {"k": o.k.at[page, slot].set(o.new_k), "v": o.v.at[page, slot].set(o.new_v)}

    return call


_PEERS: dict[str, Callable[[Problem], Any]] = {
    "auto": functools.partial(_ours, None),
    "xla": functools.partial(_ours, "xla"),
    "scatter": _scatter,
}

if __name__ == "__main__":
    sys.exit(main())
