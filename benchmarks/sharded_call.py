"""One call over several devices: what is gathered, what it costs, and whether it is right.

    python benchmarks/sharded_call.py --out sharded.json
    python benchmarks/sharded_call.py --cpu-devices 8 --batch 8 --length 128 --heads 8 --head-dim 16 --links 2

Operands sharded over batch or heads, on automatic and explicit mesh axes, forward and forward+backward: ours under
plain ``jit`` beside ``jax.nn.dot_product_attention`` under the same ``jit``. For each: the all-gathers in the compiled
program, whether the output is sharded, the largest error against dense attention in float32 on one device, whether the
bits are those that the same program gives on one device, and the time of a call. A sample is a chain of calls, each of
which needs the one before it, in one program; the samples of both programs of a row are interleaved. Right is what errs
at most twice as much as on one device.
"""

import argparse
import datetime
import json
import os
import re
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--kv-heads", type=int, help="default: as many as heads")
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--devices", type=int, help="default: all")
    parser.add_argument("--links", type=int, default=20, help="calls in one sample")
    parser.add_argument("--rounds", type=int, default=15, help="samples of each program")
    parser.add_argument("--cpu-devices", type=int, help="a dry run on that many virtual CPU devices")
    parser.add_argument("--out", type=Path, help="JSON")
    args = parser.parse_args()
    devices = several_devices(args)
    theirs = "xla" if devices[0].platform == "cpu" else "cudnn"
    report: dict[str, Any] = facts(devices, args) | {"theirs": f"jax.nn {theirs}", "rows": []}
    print(
        f"{'operands':24} {'what':8} {'program':14} {'gathers':>7} {'sharded':>7} {'max error':>10} "
        f"{'same bits':>9} {'us':>10} {'/ours':>6}"
    )
    for kind in ("automatic", "explicit"):
        for along in ("batch", "heads"):
            for what in ("fwd", "fwd+bwd"):
                row = measure(args, devices, kind, along, what, theirs)
                report["rows"] += row
                for entry in row:
                    show(entry)
    if args.out:
        args.out.write_text(json.dumps(report, indent=1) + "\n")
    ours = [row for row in report["rows"] if row["program"] == "ours"]
    is_good = all(not row["gathers"] and row["sharded"] and row["right"] for row in ours)
    print("nothing gathered, all sharded, all right" if is_good else "NOT as it should be")
    return 0 if is_good else 1


def several_devices(args: argparse.Namespace) -> list[Any]:
    """The first ``args.devices`` devices of JAX, which is imported here; ``args.cpu_devices`` makes virtual ones first.

    Ends the process with status 2 where there is only one.
    """
    if args.cpu_devices:
        flags = f"--xla_force_host_platform_device_count={args.cpu_devices}"
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flags}"
        os.environ["JAX_PLATFORMS"] = "cpu"
    import jax

    devices = jax.devices()[: args.devices]
    if len(devices) < 2:
        print("this needs at least two devices; --cpu-devices 2 makes virtual ones", file=sys.stderr)
        raise SystemExit(2)
    return devices


def facts(devices: Any, args: argparse.Namespace) -> dict[str, Any]:
    """The devices, versions and options that the figures were measured with."""
    sizes = ("batch", "length", "heads", "kv_heads", "head_dim", "links", "rounds")
    return versions(devices[0]) | {"devices": len(devices), **{name: getattr(args, name) for name in sizes}}


def versions(device: Any) -> dict[str, Any]:
    """The date, the kind of a device, and the versions of what is installed."""
    from importlib.metadata import PackageNotFoundError, version

    def installed(*names: str) -> str | None:
        for name in names:
            try:
                return version(name)
            except PackageNotFoundError:
                continue
        return None

    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "device": device.device_kind,
        "jax": installed("jax"),
        "triton": installed("triton"),
        "cudnn": installed("nvidia-cudnn-cu13", "nvidia-cudnn-cu12"),
        "attn_tune": installed("attn-tune"),
    }


def measure(
    args: argparse.Namespace, devices: Any, kind: str, along: str, what: str, theirs: str
) -> list[dict[str, Any]]:
    """One entry a program: ours first, then JAX's."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

    import attn_tune

    axis_type = AxisType.Auto if kind == "automatic" else AxisType.Explicit
    mesh = Mesh(np.array(devices), ("x",), axis_types=(axis_type,))
    spec = PartitionSpec("x") if along == "batch" else PartitionSpec(None, None, "x")
    kv_heads = args.kv_heads or args.heads
    dtype = jnp.float32 if devices[0].platform == "cpu" else jnp.bfloat16
    rng = np.random.default_rng(0)
    q, k, v, weight = (
        jnp.asarray(rng.standard_normal((args.batch, args.length, n, args.head_dim)), dtype)
        for n in (args.heads, kv_heads, kv_heads, args.heads)
    )
    calls: dict[str, Callable] = {
        "ours": lambda q, k, v: attn_tune.flash_attention(q, k, v, causal=True),
        f"jax.nn {theirs}": lambda q, k, v: jax.nn.dot_product_attention(
            q, k, v, is_causal=True, implementation=theirs
        ),
    }
    one = tuple(jax.device_put(x, devices[0]) for x in (q, k, v, weight))
    many = tuple(jax.device_put(x, NamedSharding(mesh, spec)) for x in (q, k, v, weight))
    exact = jax.jit(program(dense, what))(*(x.astype(jnp.float32) for x in one))
    entries, chains = [], []
    for name, call in calls.items():
        run = program(call, what)
        try:
            entry = {"axes": kind, "along": along, "what": what, "program": name}
            entries.append(entry | check(run, one, many, exact))
        except Exception as error:
            if name == "ours":
                raise
            print(f"{kind}, {along}: {name} {what} fails: {str(error).splitlines()[0][:120]}")
            continue
        chains.append(jax.jit(chain(run, args.links)).lower(*many).compile())
    times = race([lambda c=c: jax.block_until_ready(c(*many)) for c in chains], args.rounds)
    for entry, samples in zip(entries, times, strict=True):
        entry["us"] = statistics.median(samples) / args.links * 1e6
        pairs = zip(times[0], samples, strict=True)
        entry["over_ours"] = statistics.median(theirs / ours for ours, theirs in pairs)
    return entries


def check(run: Callable, one: Any, many: Any, exact: Any) -> dict[str, Any]:
    """Compare the compiled program for sharded operands with the same function on one device."""
    import jax
    import numpy as np

    compiled = jax.jit(run).lower(*many).compile()
    got, whole = compiled(*many), jax.jit(run)(*one)
    is_right, error = True, 0.0
    for mine, alone, right in zip(got, whole, exact, strict=True):
        mine, alone, right = (np.asarray(x, np.float32) for x in (mine, alone, right))
        gap, usual = np.abs(mine - right).max(), np.abs(alone - right).max()
        error = max(error, float(gap))
        is_right &= bool(gap <= 2 * usual + 1e-6 * np.abs(right).max())
    pairs = zip(got, whole, strict=True)
    return {
        "gathers": len(re.findall(r" all-gather(?:-start)?\(", compiled.as_text())),
        "sharded": all(not x.sharding.is_fully_replicated for x in got),
        "error": error,
        "right": is_right,
        "same_bits": all(np.array_equal(np.asarray(a), np.asarray(b)) for a, b in pairs),
    }


def program(call: Callable, what: str) -> Callable:
    """The outputs of one forward, or with the three gradients."""
    import jax

    def forward(q: Any, k: Any, v: Any, weight: Any) -> tuple[Any, ...]:
        return (call(q, k, v),)

    def both(q: Any, k: Any, v: Any, weight: Any) -> tuple[Any, ...]:
        out, pull = jax.vjp(call, q, k, v)
        return (out, *pull(weight))

    return forward if what == "fwd" else both


def chain(run: Callable, links: int) -> Callable:
    """``links`` calls in one program; each needs all results of the one before it."""
    import jax
    import jax.numpy as jnp

    def every(q: Any, k: Any, v: Any, weight: Any) -> Any:
        def step(carry: Any, _: None) -> tuple[Any, None]:
            results = run(*carry, weight)
            if len(results) == 1:
                return (results[0], *carry[1:]), None
            # Of the size of the operands again, and of no other: a few steps must not overflow.
            grads = results[1:]
            return tuple(jnp.tanh(g + 0.01 * x) for g, x in zip(grads, carry, strict=True)), None

        return jax.lax.scan(step, (q, k, v), None, length=links)[0]

    return every


def dense(q: Any, k: Any, v: Any) -> Any:
    """Causal attention written out in float32."""
    import jax
    import jax.numpy as jnp

    heads = jnp.arange(q.shape[2]) // (q.shape[2] // k.shape[2])

    # A batch entry at a time: all logits of a long problem do not fit.
    @jax.checkpoint
    def entry(arrays: Any) -> Any:
        q, k, v = arrays
        logits = jnp.einsum("tnh,snh->nts", q, k[:, heads], precision="highest")
        length = q.shape[0]
        hidden = jnp.arange(length)[None] > jnp.arange(length)[:, None]
        logits = jnp.where(hidden, -jnp.inf, logits * q.shape[-1] ** -0.5)
        weights = jax.nn.softmax(logits)
        return jnp.einsum("nts,snh->tnh", weights, v[:, heads], precision="highest")

    return jax.lax.map(entry, (q, k, v))


def race(programs: list[Callable], rounds: int) -> list[list[float]]:
    """Seconds of every sample; the order turns from round to round."""
    for run in programs:
        run()
    samples: list[list[float]] = [[] for _ in programs]
    for turn in range(rounds):
        order = range(len(programs)) if turn % 2 == 0 else reversed(range(len(programs)))
        for i in order:
            start = time.perf_counter()
            programs[i]()
            samples[i].append(time.perf_counter() - start)
    return samples


def show(entry: dict[str, Any]) -> None:
    """One line of the table."""
    operands = f"{entry['axes']}, {entry['along']}"
    error = f"{entry['error']:.2e}" + ("" if entry["right"] else " WRONG")
    print(
        f"{operands:24} {entry['what']:8} {entry['program']:14} {entry['gathers']:7} "
        f"{entry['sharded']!s:>7} {error:>10} {entry['same_bits']!s:>9} {entry['us']:10.1f} "
        f"{entry['over_ours']:6.2f}"
    )


if __name__ == "__main__":
    raise SystemExit(main())
