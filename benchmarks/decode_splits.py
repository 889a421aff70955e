"""Both launches of the forward that splits the keys, for every tile of keys and number of splits, on decoding shapes.

    python benchmarks/decode_splits.py --out decode_splits.csv

One row a config of the grid ``decode``: microseconds of the launch that reads keys and values and of the one that
combines the parts, medians with a cold cache; cuDNN's in the same process beside them. The cost model that chooses
``triton_split``'s untuned config was fitted to these figures. Needs a GPU.
"""

import argparse
import csv
import dataclasses
import functools
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

COLUMNS = ("point", "kernel", "block_k", "num_splits", "split_us", "combine_us")


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--samples", type=int, default=7)
    args = parser.parse_args()
    with args.out.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for row in measured(args.samples):
            writer.writerow(row)
            print(*row, flush=True)
    return 0


def measured(samples: int) -> Iterator[tuple[Any, ...]]:
    """The rows, in the order of ``COLUMNS``."""
    import jax

    from attn_tune.devices.identity import current_device
    from attn_tune.kernels.registry import get_kernel
    from attn_tune.ops.contract import load
    from attn_tune.ops.registry import get_op
    from attn_tune.schema.config import config_to_dict
    from attn_tune.tuner.plan.grid import load_grid
    from attn_tune.tuner.protocol import ConfigRef
    from attn_tune.tuner.work.compile import part_function
    from attn_tune.tuner.work.measure import make_flush

    op, device = get_op("flash_attention"), current_device()
    flush = make_flush(device)
    for point in load_grid("decode").points:
        problem = op.from_signature(point.signature)
        inputs = jax.jit(lambda problem=problem: load(op.inputs)(problem, "fwd", 0))()
        for name in ("cudnn", "triton_split"):
            spec = get_kernel(f"{op.name}/{name}")
            if spec.unsupported(problem, "fwd", device):
                continue
            search = spec.searches["fwd"]
            start = search.heuristic(problem, device)
            for config in tiles(start, problem.kv_len) if name == "triton_split" else [start]:
                if search.infeasible(problem, device, config):
                    continue
                ref = ConfigRef(
                    kernel=spec.id,
                    signature=point.signature,
                    direction="fwd",
                    config=config_to_dict(config),
                    part="",
                )
                call = jax.jit(part_function(ref)).lower(inputs).compile()
                first, second = launches(functools.partial(call, inputs), flush, samples)
                knobs = (getattr(config, "block_k", ""), getattr(config, "num_splits", ""))
                yield point.name, name, *knobs, round(first, 2), round(second, 2)


def tiles(start: Any, kv_len: int) -> Iterator[Any]:
    """The untuned config with other tiles of keys and splits, each part at least one tile."""
    for splits in (1, 2, 4, 8, 16, 32):
        for block_k in (32, 64, 128):
            if kv_len // splits >= block_k:
                yield dataclasses.replace(start, block_k=block_k, num_splits=splits)


def launches(call: Any, flush: Any, samples: int) -> tuple[float, float]:
    """Median microseconds of the first kernel of a call, and of all others together."""
    import jax
    from jax._src.lib import mosaic_gpu

    cupti = mosaic_gpu._mosaic_gpu_ext
    jax.block_until_ready((call(), flush()))
    cupti._cupti_init()
    jax.block_until_ready(flush())
    flushes = len(cupti._cupti_get_timings(False))
    times = []
    for _ in range(samples):
        cupti._cupti_init()
        jax.block_until_ready(flush())
        jax.block_until_ready(call())
        times.append([ms * 1e3 for _, ms in cupti._cupti_get_timings(False)][flushes:])
    return statistics.median(t[0] for t in times), statistics.median(sum(t[1:]) for t in times)


if __name__ == "__main__":
    sys.exit(main())
