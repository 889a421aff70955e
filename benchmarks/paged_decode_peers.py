"""Decoding over a paged cache beside its peers: one run, one device, interleaved, device time, cold cache.

    python benchmarks/paged_decode_peers.py --grid llama3-8b-serving --out serving.json

For each point what ``attn_tune.paged_decode`` chooses, its XLA and its cuDNN kernel, cuDNN's paged attention alone
(which JAX has, but not as a public function; it is given caches without poison), cuDNN on a contiguous cache of the
same lengths through ``jax.nn.dot_product_attention``, and, where ``flash_attn3_jax`` is installed, FlashAttention-3
over the same pages with 1, 4 and 16 splits. A row says microseconds, the terabytes of visible keys and values a second,
and the worst error as a multiple of what is allowed. ``read`` reads as many bytes and keeps their maximum: what a
kernel of this size can reach at best. A GPU is needed.
"""

import argparse
import dataclasses
import functools
import importlib.util
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from attn_tune.ops.fields.cache import SAME
from attn_tune.ops.paged_decode.operands import Operands
from attn_tune.ops.paged_decode.problem import Problem

_READ = "read"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit status."""
    return record("paged_decode", _PEERS, "llama3-8b-serving", str(__doc__), arguments)


def record(
    op_name: str,
    peers: Mapping[str, Callable[[Any, Any], Any]],
    grid: str,
    about: str,
    arguments: Sequence[str] | None,
) -> int:
    """Runs the command line of a script that times an op beside its peers; returns the exit status."""
    parser = argparse.ArgumentParser(description=about.partition("\n")[0])
    parser.add_argument("--grid", default=grid)
    parser.add_argument("--only", default="", help="points whose name contains one of these, with commas between them")
    parser.add_argument("--peers", default=",".join(peers), help="only these, by name, with commas between them")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args(arguments)
    report: dict[str, Any] = {"versions": versions(), "rows": []}
    chosen = {name: peers[name] for name in args.peers.split(",")}
    for row in _rows(op_name, chosen, args.grid, args.only, args.rounds):
        report["rows"].append(row)
        args.out.write_text(json.dumps(report, indent=1) + "\n")
    return 0


def versions() -> dict[str, str]:
    """The device, the versions of the software of this run, and its date."""
    import datetime
    import importlib.metadata

    import jax
    import triton

    found = {"device": jax.devices()[0].device_kind, "jax": jax.__version__, "triton": triton.__version__}
    names = {"nvidia-cudnn-cu12": "cudnn", "nvidia-cudnn-cu13": "cudnn"}
    for name in (*names, "fla-core", "flashinfer-python"):
        try:
            found[names.get(name, name)] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found | {"date": datetime.datetime.now(datetime.UTC).date().isoformat()}


def _rows(
    op_name: str, peers: Mapping[str, Callable[[Any, Any], Any]], grid: str, only: str, rounds: int
) -> Iterator[dict[str, Any]]:
    """A row for each point of a grid. A peer makes a function and its arguments, or says why it cannot."""
    import jax

    from attn_tune.devices.identity import current_device
    from attn_tune.ops.contract import load
    from attn_tune.ops.registry import ops
    from attn_tune.ops.tolerance import compare
    from attn_tune.tuner.plan.grid import load_grid
    from attn_tune.tuner.protocol import MeasurePolicy
    from attn_tune.tuner.work.measure import make_flush, race
    from attn_tune.tuner.work.timers.choose import choose_timer

    op, flush, timer = ops()[op_name], make_flush(current_device()), choose_timer()
    for point in load_grid(grid).points:
        if not any(part in point.name for part in only.split(",")):
            continue
        problem = op.from_signature(point.signature)
        operands = jax.jit(functools.partial(load(op.inputs), problem, "fwd"))(0)
        exact, plain = (
            jax.jit(functools.partial(load(path), problem, "fwd"))(operands) for path in (op.reference, op.baseline)
        )
        moved = op.bytes_moved(problem, "fwd")
        entries: dict[str, tuple[Any, tuple[Any, ...]]] = {}
        notes: dict[str, str] = {}
        errors: dict[str, float] = {}
        for name, make in peers.items():
            made = make(problem, operands)
            if isinstance(made, str):
                notes[name] = made
                continue
            function, given = made
            try:
                compiled = jax.jit(function).lower(*given).compile()
                out = compiled(*given)
            except Exception as error:  # any error of a peer is that peer's result
                notes[name] = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
                continue
            if name != _READ:
                declared = op.outputs(problem, "fwd")
                (judged,) = compare({declared[0].name: out}, exact, plain, declared)
                errors[name] = round(judged.ratio, 3)
            entries[name] = (compiled, given)
        measured = race(
            [functools.partial(compiled, *given) for compiled, given in entries.values()],
            timer=timer,
            policy=MeasurePolicy(rounds=rounds, rounds_max_s=10.0),
            flush=flush,
            round_id=point.name,
        ).measurements
        times = {name: m.median_ns / 1e3 for name, m in zip(entries, measured, strict=True)}
        row = {
            "point": point.name,
            "signature": point.signature.text,
            "bytes": moved,
            "flops": op.flops(problem, "fwd"),
            "us": {name: round(us, 2) for name, us in times.items()},
            "tb_s": {name: round(moved / us / 1e6, 2) for name, us in times.items()},
            "tflop_s": {name: round(op.flops(problem, "fwd") / us / 1e6, 1) for name, us in times.items()},
            "error_ratio": errors,
            "cannot": notes,
        }
        print(f"{point.name:36s}", "  ".join(f"{n} {us:.2f} us {moved / us / 1e6:.2f}" for n, us in times.items()))
        if wrong := {name: ratio for name, ratio in errors.items() if ratio > 1}:
            print(f"{'':36s} wrong: {wrong}")
        yield row


def _ours(platform: str | None, p: Problem, o: Operands) -> Any:
    import attn_tune

    def call(o: Operands) -> Any:
        return attn_tune.paged_decode(o.q, o.k, o.v, o.kv_lens, o.page_table, platform=platform, **options(p, o))

    return call, (o,)


def options(p: Any, o: Any) -> dict[str, Any]:
    """The arguments of a call of attention over a cache that say which problem it is."""
    return {
        "layout": p.layout,
        "sliding_window": p.window,
        "softmax_scale": p.scale,
        "logits_soft_cap": p.soft_cap,
        "softmax_aux": o.sinks,
        "k_scale": o.k_scale,
        "v_scale": o.v_scale,
        "max_kv_len": p.kv_len,
        "workload": p.workload,
    }


def _plain(p: Any, *, is_causal: bool = False) -> str:
    """The reason that a library which knows plain attention alone cannot do the problem; empty if it can."""
    lacks = {
        "codes": p.kv_dtype != SAME,
        "sinks": p.has_sinks,
        "a soft cap": p.soft_cap is not None,
        "a window": p.window is not None,
        "another layout": p.layout != "nhd",
        "several queries": not is_causal and p.q_len > 1,
        "float32": p.dtype == "float32",
    }
    return next((f"not with {name}" for name, has in lacks.items() if has), "")


def _dense(p: Problem, o: Operands) -> tuple[Any, Any, Any]:
    """The caches without poison, which other libraries may multiply by zero: in pages, and those of each sequence."""
    import jax.numpy as jnp

    k, v = (jnp.where(jnp.isnan(x), 0, x) for x in (o.k, o.v))
    table = o.page_table if o.page_table is not None else jnp.arange(p.batch)[:, None]
    return k, v, jnp.clip(table, 0, k.shape[0] - 1)


def _cudnn_paged(p: Problem, o: Operands) -> Any:
    if reason := _plain(p):
        return reason
    if not p.page_size:
        return "the cache has no pages"
    import jax.numpy as jnp
    from jax._src.cudnn import fused_attention_stablehlo as cudnn

    k, v, table = _dense(p, o)
    pages = p.batch * p.input_width
    # It takes as many pages as the table has entries: those of the table, in an order of their own.
    order = jnp.argsort(jnp.argsort(table.reshape(-1)))
    k, v = (x[jnp.sort(table.reshape(-1))][:pages] for x in (k, v))
    table = order.reshape(p.batch, 1, p.input_width, 1).astype(jnp.int32)

    def call(q: Any, k: Any, v: Any, table: Any, lengths: Any) -> Any:
        ones = jnp.full((p.batch,), p.q_len, jnp.int32)
        made = cudnn.paged_attention(
            q, k, v, ones, lengths, table, table, scale=p.scale, mask_type=cudnn.MaskType.PADDING
        )
        return made[0] if isinstance(made, tuple | list) else made

    return call, (o.q, k, v, table, o.kv_lens)


def _cudnn_contiguous(p: Problem, o: Operands) -> Any:
    if reason := _plain(p):
        return reason
    import jax

    k, v, table = _dense(p, o)
    k, v = (x[table].reshape(p.batch, -1, *x.shape[2:])[:, : p.kv_len] for x in (k, v))

    def call(q: Any, k: Any, v: Any, lengths: Any) -> Any:
        lengths = None if p.workload == "eq" else lengths
        return jax.nn.dot_product_attention(
            q, k, v, scale=p.scale, key_value_seq_lengths=lengths, implementation="cudnn"
        )

    return call, (o.q, k, v, o.kv_lens)


def fa3(splits: int, p: Any, o: Any, q: Callable[[Any], Any] = lambda q: q, *, is_causal: bool = False) -> Any:
    """FlashAttention-3 of sequences with equal numbers of queries; ``q`` makes ``[B, T, N, H]`` of an op's."""
    if importlib.util.find_spec("flash_attn3_jax") is None:
        return "flash-attn3-jax is not installed"
    if p.head_dim != 128 or p.v_head_dim != 128:
        return "its wheels are compiled for head dim 128"
    if reason := _plain(p, is_causal=is_causal):
        return reason
    from flash_attn3_jax import flash_mha_with_kvcache

    k, v, table = _dense(p, o)
    table = table.astype("int32") if p.page_size else None

    def call(queries: Any, k: Any, v: Any, table: Any, lengths: Any) -> Any:
        out = flash_mha_with_kvcache(
            q(queries),
            k,
            v,
            cache_seqlens=lengths,
            page_table=table,
            softmax_scale=p.scale,
            is_causal=is_causal,
            num_splits=splits,
        )
        return out.reshape(queries.shape)

    return call, (o.q, k, v, table, o.kv_lens)


def read(p: Problem, o: Operands) -> Any:
    """A call that reads as many bytes as the problem has in its cache, and keeps their maximum."""
    import jax
    import jax.numpy as jnp

    from attn_tune.ops.paged_decode.problem import bytes_moved

    count = bytes_moved(dataclasses.replace(p, q_len=1), "fwd") // 2
    data = jax.random.normal(jax.random.key(0), (-(-count // 4096), 4096), jnp.bfloat16)
    return lambda x: x.astype(jnp.float32).max(), (data,)


_PEERS: dict[str, Callable[[Problem, Operands], Any]] = {
    "auto": functools.partial(_ours, None),
    "xla": functools.partial(_ours, "xla"),
    "cudnn": functools.partial(_ours, "cudnn"),
    "cudnn_paged": _cudnn_paged,
    "cudnn_contiguous": _cudnn_contiguous,
    "fa3": functools.partial(fa3, 1),
    "fa3_4_splits": functools.partial(fa3, 4),
    "fa3_16_splits": functools.partial(fa3, 16),
    _READ: read,
}

if __name__ == "__main__":
    sys.exit(main())
