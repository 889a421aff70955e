"""Decoding with a shared prefix beside decoding over whole sequences: one run, one device, interleaved, device time.

    python benchmarks/cascade_peers.py --out cascade.json
    python benchmarks/cascade_peers.py --out dry.json --batch 4 --prefix 64 --own 8 --heads 4x2x16 --page 8 --rounds 2

The second line is a dry run for a CPU. All sequences of a row share one prefix, whose pages stand in every row of the
whole page table, and the caches are cold. ``whole`` is ``attn_tune.paged_decode`` over that table, ``cascade`` is
``attn_tune.cascade_attention``, ``groups`` the same where only the device knows the groups, ``ragged`` the same through
``ragged_paged``. ``prefix``, ``own`` and ``merge`` are the three calls of ``cascade`` alone. A row says microseconds,
the worst error as a multiple of what is allowed, and the fewest bytes with and without sharing.
"""

import argparse
import functools
import itertools
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from paged_decode_peers import versions

from attn_tune.ops.paged_decode.problem import Problem, bytes_moved


class Inputs(NamedTuple):
    """The arrays of a row: one prefix, and the own tokens of each sequence.

    Attributes:
      q: queries ``[B, N, H]``.
      k, v: the cache, ``[pages, P, K, H]``.
      prefix_table, prefix_lens: the pages of the prefix ``[1, pages]`` and its length ``[1]``.
      table, own_lens: the pages of the own tokens ``[B, pages]`` and their numbers ``[B]``.
      whole_table: pages of prefix and own tokens in a row.
    """

    q: Any
    k: Any
    v: Any
    prefix_table: Any
    prefix_lens: Any
    table: Any
    own_lens: Any
    whole_table: Any


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--batch", type=int, nargs="+", default=[8, 32, 128, 256])
    parser.add_argument("--prefix", type=int, nargs="+", default=[1024, 4096, 32768], help="whole pages")
    parser.add_argument("--own", type=int, nargs="+", default=[128, 1024])
    parser.add_argument("--heads", default="32x8x128", help="query heads, key heads and head dim")
    parser.add_argument("--page", type=int, default=64)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args(arguments)
    if wrong := [n for n in args.prefix if n % args.page]:
        parser.error(f"--prefix {wrong[0]} must be a multiple of --page {args.page}: pages are shared whole")
    report: dict[str, Any] = {"versions": versions(), "rows": []}
    num_q_heads, num_kv_heads, head_dim = map(int, args.heads.split("x"))
    for batch, prefix, own in itertools.product(args.batch, args.prefix, args.own):
        problem = Problem(
            batch=batch,
            q_len=1,
            kv_len=prefix + own,
            num_q_heads=num_q_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            v_head_dim=head_dim,
            page_size=args.page,
            dtype=args.dtype,
            scale=head_dim**-0.5,
        )
        report["rows"].append(_row(problem, prefix, args.rounds))
        args.out.write_text(json.dumps(report, indent=1) + "\n")
    return 0


def _row(problem: Problem, prefix: int, rounds: int) -> dict[str, Any]:
    import jax

    from attn_tune.devices.identity import current_device
    from attn_tune.ops.paged_decode.op import OP
    from attn_tune.tuner.protocol import MeasurePolicy
    from attn_tune.tuner.work.measure import make_flush, race
    from attn_tune.tuner.work.timers.choose import choose_timer

    name = f"{problem.batch}x{prefix}+{problem.kv_len - prefix}"
    inputs = jax.jit(functools.partial(draw_inputs, problem, prefix))(0)
    exact, plain = _answers(problem, inputs)
    programs: dict[str, Callable[[], Any]] = {}
    errors: dict[str, float] = {}
    notes: dict[str, str] = {}
    for peer, call, given in _calls(inputs):
        try:
            compiled = jax.jit(call).lower(*given).compile()
            out = jax.block_until_ready(compiled(*given))
        except Exception as error:  # any error of a peer is that peer's result
            notes[peer] = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            continue
        programs[peer] = functools.partial(compiled, *given)
        if peer in _WHOLE:
            errors[peer] = _ratio(OP.outputs(problem, "fwd"), out, exact, plain)
    measured = race(
        list(programs.values()),
        timer=choose_timer(),
        policy=MeasurePolicy(rounds=rounds, rounds_max_s=10.0),
        flush=make_flush(current_device()),
        round_id=name,
    ).measurements
    times = {peer: m.median_ns / 1e3 for peer, m in zip(programs, measured, strict=True)}
    print(f"{name:20s}", "  ".join(f"{peer} {us:.2f} us" for peer, us in times.items()))
    if wrong := {peer: ratio for peer, ratio in errors.items() if ratio > 1}:
        print(f"{'':20s} wrong: {wrong}")
    return {
        "point": name,
        "signature": problem.signature.text,
        "bytes": {"whole": bytes_moved(problem, "fwd"), "cascade": shared_bytes(problem, prefix)},
        "us": {peer: round(us, 2) for peer, us in times.items()},
        "error_ratio": errors,
        "cannot": notes,
    }


def shared_bytes(problem: Problem, prefix: int) -> int:
    """The fewest bytes of a cascade: each key of the prefix and its value read once for all sequences."""
    key = problem.num_kv_heads * 2 * problem.head_dim * (4 if problem.dtype == "float32" else 2)
    return bytes_moved(problem, "fwd") - (problem.batch - 1) * prefix * key


def draw_inputs(problem: Problem, prefix: int, seed: Any) -> Inputs:
    """Random arrays of a row, the same for the same seed; may be called under ``jit``."""
    import jax
    import jax.numpy as jnp

    p = problem
    shared, own = prefix // p.page_size, -(-(p.kv_len - prefix) // p.page_size)
    pages = shared + p.batch * own
    keys = jax.random.split(jax.random.key(seed), 4)
    cache = (pages, p.page_size, p.num_kv_heads, p.head_dim)
    order = jax.random.permutation(keys[3], pages).astype(jnp.int32)
    prefix_table, table = order[None, :shared], order[shared:].reshape(p.batch, own)
    return Inputs(
        q=jax.random.normal(keys[0], (p.batch, p.num_q_heads, p.head_dim), p.dtype),
        k=jax.random.normal(keys[1], cache, p.dtype),
        v=jax.random.normal(keys[2], cache, p.dtype),
        prefix_table=prefix_table,
        prefix_lens=jnp.full(1, prefix, jnp.int32),
        table=table,
        own_lens=jnp.full(p.batch, p.kv_len - prefix, jnp.int32),
        whole_table=jnp.concatenate([jnp.broadcast_to(prefix_table, (p.batch, shared)), table], axis=1),
    )


def _answers(problem: Problem, inputs: Inputs) -> tuple[Any, Any]:
    """The answers of the reference and of the baseline over whole sequences."""
    import jax

    from attn_tune.ops.paged_decode.operands import Operands
    from attn_tune.ops.paged_decode.reference import baseline, reference

    i = inputs
    lengths = i.own_lens + i.prefix_lens
    operands = Operands(q=i.q[:, None], k=i.k, v=i.v, page_table=i.whole_table, kv_lens=lengths)
    exact, plain = (jax.jit(functools.partial(f, problem, "fwd"))(operands) for f in (reference, baseline))
    return exact, plain


def _ratio(declared: Any, out: Any, exact: Any, plain: Any) -> float:
    from attn_tune.ops.tolerance import compare

    (judged,) = compare({"out": out.reshape(exact["out"].shape)}, exact, plain, declared)
    return round(judged.ratio, 3)


# Those that compute attention over all keys.
_WHOLE = ("whole", "cascade", "groups", "ragged")


def _calls(inputs: Inputs) -> Iterator[tuple[str, Callable[..., Any], tuple[Any, ...]]]:
    import jax
    import jax.numpy as jnp

    import attn_tune

    i = inputs
    batch, heads, _ = i.q.shape
    kv_heads = i.k.shape[2]
    ends = jnp.arange(batch + 1)

    def whole(i: Inputs) -> Any:
        return attn_tune.paged_decode(i.q, i.k, i.v, i.own_lens + i.prefix_lens, i.whole_table)

    def cascade(i: Inputs, cu_seqs: Any = None, cu_q_lens: Any = None) -> Any:
        prefix = attn_tune.SharedPrefix(i.prefix_table, i.prefix_lens, cu_seqs)
        return attn_tune.cascade_attention(i.q, i.k, i.v, i.own_lens, i.table, prefix, cu_q_lens=cu_q_lens)

    def own(i: Inputs) -> Any:
        return attn_tune.paged_decode(i.q, i.k, i.v, i.own_lens, i.table, return_lse=True)

    def prefix(q: Any, i: Inputs) -> Any:
        return attn_tune.paged_decode(q, i.k, i.v, i.prefix_lens, i.prefix_table, return_lse=True)

    packed = i.q.reshape(batch, kv_heads, heads // kv_heads, -1).swapaxes(0, 1).reshape(1, batch * heads, -1)
    parts = jax.block_until_ready(jax.jit(own)(i))
    yield "whole", whole, (i,)
    yield "cascade", cascade, (i,)
    yield "groups", cascade, (i, jnp.array([0, batch]))
    yield "ragged", cascade, (i, None, ends)
    yield "prefix", prefix, (packed, i)
    yield "own", own, (i,)
    yield "merge", lambda out, lse: attn_tune.merge_attention([out, out], [lse, lse]), parts


if __name__ == "__main__":
    sys.exit(main())
