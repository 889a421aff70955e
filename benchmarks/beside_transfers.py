"""Attention while weights are gathered from other devices: how much longer does either take?

    python benchmarks/beside_transfers.py --out beside.json
    python benchmarks/beside_transfers.py --cpu-devices 2 --length 64 --heads 2 --kv-heads 1 --megabytes 1 --kernels xla

Training with sharded weights gathers those of the next layer while a layer computes. A transfer's programs hold some
multiprocessors until it is done, and attention has the others. A sample is a chain of links in one program: each
gathers an array of ``--megabytes`` beside ``--calls`` of attention, one after the other, to this device's shard of the
batch, and the next link needs both. In turns with it run the same chains with attention alone and with the transfers
alone. ``/longer`` is the time of both together over that of the longer one alone: 1.0 hides the shorter one whole.
``overlapped`` counts the transfers of the compiled program between whose start and end something runs.
"""

import argparse
import functools
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ring_attention import transfers
from sharded_call import facts, program, race, several_devices


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--batch", type=int, default=4, help="sequences of one device")
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--kv-heads", type=int, default=8)
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--calls", type=int, default=4, help="calls of attention beside one transfer")
    parser.add_argument(
        "--megabytes", type=float, default=1744, help="of one transfer; default: four layers of 8B weights in 16 bits"
    )
    parser.add_argument(
        "--kernels",
        nargs="+",
        default=["auto", "cudnn"],
        help="of flash_attention; auto: the lookup; A/B: A forward, B backward",
    )
    parser.add_argument("--what", nargs="+", choices=["fwd", "fwd+bwd"], default=["fwd", "fwd+bwd"])
    parser.add_argument("--links", type=int, default=3, help="transfers in one sample")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--devices", type=int, help="default: all")
    parser.add_argument("--cpu-devices", type=int, help="a dry run on that many virtual CPU devices")
    parser.add_argument("--out", type=Path, help="JSON")
    args = parser.parse_args()
    devices = several_devices(args)
    report: dict[str, Any] = facts(devices, args) | {"megabytes": args.megabytes, "calls": args.calls, "rows": []}
    print(f"{'what':8} {'kernel':16} {'alone ms':>9} {'transfer':>9} {'together':>9} {'/longer':>8} {'overlapped':>10}")
    for what in args.what:
        for entry in measure(args, devices, what):
            report["rows"].append(entry)
            print(
                f"{entry['what']:8} {entry['kernel']:16} {entry['alone_ms']:9.3f} {entry['transfer_ms']:9.3f} "
                f"{entry['together_ms']:9.3f} {entry['over_longer']:8.3f} {entry['overlapped']:>10}",
                flush=True,
            )
    if args.out:
        args.out.write_text(json.dumps(report, indent=1) + "\n")
    return 0


def measure(args: argparse.Namespace, devices: Any, what: str) -> list[dict[str, Any]]:
    """One entry a kernel; milliseconds are of one link."""
    import jax

    mesh, arrays = draw(args, devices)
    runs: dict[Any, Callable[[], Any]] = {}
    overlapped: dict[str, str] = {}
    for name in [None, *args.kernels]:
        for gathers in (True,) if name is None else (True, False):
            compiled = jax.jit(chain(args, mesh, name, what, gathers)).lower(*arrays).compile()
            if gathers and name:
                overlapped[name] = transfers(compiled.as_text() or "")
            runs[name, gathers] = functools.partial(lambda c: jax.block_until_ready(c(*arrays)), compiled)
    samples = dict(zip(runs, race(list(runs.values()), args.rounds), strict=True))
    entries = []
    for name in args.kernels:
        both, alone, transfer = samples[name, True], samples[name, False], samples[None, True]
        ratios = [t / max(a, g) for t, a, g in zip(both, alone, transfer, strict=True)]
        medians = [statistics.median(x) / args.links * 1e3 for x in (alone, transfer, both)]
        entries.append(
            {"what": what, "kernel": name}
            | dict(zip(("alone_ms", "transfer_ms", "together_ms"), medians, strict=True))
            | {"over_longer": statistics.median(ratios), "overlapped": overlapped[name]}
        )
    return entries


def draw(args: argparse.Namespace, devices: Any) -> tuple[Any, list[Any]]:
    """The mesh, and query, key, value, cotangent and weights, each with its first axis over the devices."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

    mesh = Mesh(np.array(devices), ("fsdp",), axis_types=(AxisType.Auto,))
    dtype = jnp.float32 if devices[0].platform == "cpu" else jnp.bfloat16
    batch = args.batch * len(devices)
    shapes = [(batch, args.length, n, args.head_dim) for n in (args.heads, args.kv_heads, args.kv_heads, args.heads)]
    rows = int(args.megabytes * 1e6 / dtype.dtype.itemsize / 4096) // len(devices) * len(devices)
    where = NamedSharding(mesh, PartitionSpec("fsdp"))
    normal = jax.jit(jax.random.normal, static_argnums=(1, 2), out_shardings=where)
    return mesh, [normal(jax.random.key(i), shape, dtype) for i, shape in enumerate([*shapes, (rows, 4096)])]


def chain(args: argparse.Namespace, mesh: Any, name: str | None, what: str, gathers: bool) -> Callable:
    """A program of links: the outputs of the last attention, and of each transfer a number."""
    import jax
    from jax.sharding import PartitionSpec

    import attn_tune

    forward, _, backward = (name or "auto").partition("/")
    platform = {"fwd": forward, "bwd": backward or forward}
    attend = functools.partial(attn_tune.flash_attention, causal=True, platform=platform)

    def links(q: Any, k: Any, v: Any, weight: Any, weights: Any) -> Any:
        results, first = (), []
        for _ in range(args.links):
            gathered = jax.lax.all_gather(weights, "fsdp", tiled=True) if gathers else weights
            for _ in range(args.calls if name else 0):
                results = program(attend, what)(q, k, v, weight)
                q = results[0]
                # Gradients that nothing needs would not be computed.
                if what == "fwd+bwd":
                    q, k, v = (x + 0 * g for x, g in zip((q, k, v), results[1:], strict=True))
            # Both end before the next link begins.
            q, weights, gathered, results = jax.lax.optimization_barrier((q, weights, gathered, results))
            first.append(gathered[0, 0])
        return results, sum(first)[None]

    spec = PartitionSpec("fsdp")
    return jax.shard_map(links, mesh=mesh, in_specs=(spec,) * 5, out_specs=spec, check_vma=False)


if __name__ == "__main__":
    raise SystemExit(main())
