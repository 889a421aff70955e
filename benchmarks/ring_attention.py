"""Causal attention of one long sequence on several devices, beside that on one: how near is it to an equal share?

    python benchmarks/ring_attention.py --out ring.json
    python benchmarks/ring_attention.py --cpu-devices 2 --length 256 --heads 4 --kv-heads 2 --head-dim 16 --rounds 2

``attn_tune.ring_attention`` over all devices, forward and forward+backward, and ``attn_tune.flash_attention`` of the
whole sequence on the first one. The ratio of a row is its time over the ideal, the time on one device divided by the
number of devices; the samples of both are interleaved, and a ratio is of two of one round. ``products`` are the calls
of ``flash_attention`` that a device makes for a ring, alone on one device: what is above them is merges, copies and
transfers. ``overlapped`` counts the transfers of the compiled program between whose start and end something runs.
Right is what errs at most twice as much as one device does, on a sequence that dense float32 attention can check.
"""

import argparse
import functools
import json
import re
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sharded_call import dense, facts, program, race, several_devices


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--length", type=int, default=65536, help="tokens of the whole sequence")
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--kv-heads", type=int, default=8)
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--check-length", type=int, default=4096, help="tokens of the sequence that is checked")
    parser.add_argument("--layout", default="zigzag")
    parser.add_argument("--strategies", nargs="+", default=["ring", "ring/2", "ulysses"], help="/2: in two chunks")
    parser.add_argument("--devices", type=int, help="default: all")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--cpu-devices", type=int, help="a dry run on that many virtual CPU devices")
    parser.add_argument("--out", type=Path, help="JSON")
    args = parser.parse_args()
    args.links = 1
    devices = several_devices(args)
    report: dict[str, Any] = facts(devices, args) | {"layout": args.layout, "rows": []}
    print(f"{'what':8} {'program':12} {'ms':>9} {'/ideal':>7} {'least':>7} {'most':>7} {'overlapped':>10} {'error':>9}")
    for what in ("fwd", "fwd+bwd"):
        report["rows"] += measure(args, devices, what)
        if args.out:
            args.out.write_text(json.dumps(report, indent=1) + "\n")
    is_right = all(row.get("right", True) for row in report["rows"])
    print("all right" if is_right else "NOT right")
    return 0 if is_right else 1


def measure(args: argparse.Namespace, devices: Any, what: str) -> list[dict[str, Any]]:
    """One entry a program: one device first."""
    import jax

    calls = {name: sharded(args, devices, name) for name in args.strategies}
    errors = check(args, calls, devices, what)
    operands = {
        None: draw(args, args.length, devices, None),
        args.layout: draw(args, args.length, devices, args.layout),
    }
    runs: dict[str, Callable[[], Any]] = {}
    overlapped: dict[str, str] = {}
    for name, call in {"one device": whole, "products": functools.partial(products, len(devices)), **calls}.items():
        arrays = operands[args.layout if name in calls else None]
        if name == "products":
            arrays = [x[:, : args.length // len(devices)] for x in arrays]
        compiled = jax.jit(program(call, what)).lower(*arrays).compile()
        overlapped[name] = transfers(compiled.as_text() or "")
        runs[name] = functools.partial(lambda c, a: jax.block_until_ready(c(*a)), compiled, arrays)
    samples = dict(zip(runs, race(list(runs.values()), args.rounds), strict=True))
    entries = []
    for name, times in samples.items():
        ratios = [len(devices) * mine / one for mine, one in zip(times, samples["one device"], strict=True)]
        entry = {"what": what, "program": name, "ms": statistics.median(times) * 1e3}
        if name != "one device":
            entry |= {"over_ideal": statistics.median(ratios), "least": min(ratios), "most": max(ratios)}
        entry |= {"overlapped": overlapped[name]} | errors.get(name, {})
        entries.append(entry)
        show(entry)
    return entries


def whole(q: Any, k: Any, v: Any) -> Any:
    """Attention of the whole sequence on one device."""
    import attn_tune

    return attn_tune.flash_attention(q, k, v, causal=True)


def products(count: int, q: Any, k: Any, v: Any) -> Any:
    """The products of a zigzag ring of ``count`` devices on one of them, in a row, without merges."""
    import jax.numpy as jnp

    import attn_tune

    out = attn_tune.flash_attention(q, k, v, causal=True)
    batch = q.shape[0]
    halves = [jnp.concatenate(jnp.split(x, 2, axis=1)) for x in (q, k, v)]
    for _ in range(count - 1):
        found = attn_tune.flash_attention(*halves, return_lse=True)[0]
        # Of the same values again: each product waits for the one before it.
        halves[0] = halves[0] + 0 * found
        out += jnp.concatenate([found[:batch], found[batch:]], axis=1)
    return out


def sharded(args: argparse.Namespace, devices: Any, name: str) -> Callable:
    """Attention over all devices by a strategy."""
    import jax
    from jax.sharding import PartitionSpec

    import attn_tune

    strategy, _, chunks = name.partition("/")
    local = functools.partial(
        attn_tune.ring_attention,
        axis_name="cp",
        layout=args.layout,
        strategy=strategy,
        chunks=int(chunks or 1),
        causal=True,
    )
    spec = PartitionSpec(None, "cp")
    return jax.shard_map(local, mesh=mesh_of(devices), in_specs=(spec, spec, spec), out_specs=spec)


def mesh_of(devices: Any) -> Any:
    """The mesh of one axis over the devices."""
    import numpy as np
    from jax.sharding import AxisType, Mesh

    return Mesh(np.array(devices), ("cp",), axis_types=(AxisType.Auto,))


def draw(args: argparse.Namespace, length: int, devices: Any, layout: str | None) -> list[Any]:
    """Query, key, value and the cotangent: dealt to the devices by a layout, or whole on the first."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import NamedSharding, PartitionSpec

    def made(seed: int, heads: int) -> Any:
        dtype = jnp.float32 if devices[0].platform == "cpu" else jnp.bfloat16
        x = jax.random.normal(jax.random.key(seed), (args.batch, length, heads, args.head_dim), dtype)
        return x if layout is None else dealt(x, len(devices), layout, back=False)

    spec = PartitionSpec(None, "cp")
    where = devices[0] if layout is None else NamedSharding(mesh_of(devices), spec)
    counts = (args.heads, args.kv_heads, args.kv_heads, args.heads)
    return [jax.device_put(jax.jit(made, static_argnums=(0, 1))(i, heads), where) for i, heads in enumerate(counts)]


def dealt(x: Any, count: int, layout: str, *, back: bool) -> Any:
    """``x`` in the order of a layout, or back in that of the sequence."""
    import attn_tune

    if layout == "contiguous":
        return x
    return getattr(attn_tune, f"{layout}_{'unshard' if back else 'shard'}")(x, 1, count)


def check(args: argparse.Namespace, calls: dict[str, Callable], devices: Any, what: str) -> dict[str, Any]:
    """The largest error of each program against dense float32 attention, as a share of the largest number."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    length = min(args.length, args.check_length)
    one = draw(args, length, devices, None)
    many = draw(args, length, devices, args.layout)
    exact = jax.jit(program(dense, what))(*(x.astype(jnp.float32) for x in one))

    def error(got: Any) -> float:
        pairs = [(np.asarray(a, np.float32), np.asarray(b)) for a, b in zip(got, exact, strict=True)]
        return max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in pairs)

    usual = error(jax.jit(program(whole, what))(*one))
    found = {"one device": {"error": usual}}
    for name, call in calls.items():
        results = jax.jit(program(call, what))(*many)
        off = error([dealt(jax.device_put(x, devices[0]), len(devices), args.layout, back=True) for x in results])
        found[name] = {"error": off, "right": off <= 2 * usual + 1e-6}
    return found


def transfers(text: str) -> str:
    """The transfers of a scheduled program between whose start and end something runs, of all that it has."""
    lines = text.splitlines()
    # Matched from the start of a line: some hold a whole compiled kernel, in one word.
    start = re.compile(r"\s*(?:ROOT )?%?(\S+) = .* [\w-]+-start\(")
    starts = {m[1]: i for i, line in enumerate(lines) if (m := start.match(line))}
    found = total = 0
    for i, line in enumerate(lines):
        if done := re.search(r"-done\(.*?%([\w.-]+)\)", line):
            total += 1
            between = lines[starts.get(done[1], i) + 1 : i]
            found += any(re.search(r" (custom-call|fusion|call|while)\(", x) for x in between)
    return f"{found}/{total}"


def show(entry: dict[str, Any]) -> None:
    """One line of the table."""
    ratios = [f"{entry[name]:7.3f}" if name in entry else " " * 7 for name in ("over_ideal", "least", "most")]
    error = f"{entry['error']:.2e}" if "error" in entry else ""
    wrong = "" if entry.get("right", True) else " WRONG"
    print(
        f"{entry['what']:8} {entry['program']:12} {entry['ms']:9.3f} {' '.join(ratios)} "
        f"{entry['overlapped']:>10} {error:>9}{wrong}",
        flush=True,
    )


if __name__ == "__main__":
    raise SystemExit(main())
