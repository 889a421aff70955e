"""Latent decoding (MLA) over a paged cache beside reading it: one device, interleaved, device time, cold cache.

    python benchmarks/mla_decode_peers.py --only heads16,heads128 --out mla.json
    python benchmarks/mla_decode_peers.py --only heads16/128x1x4k --peers triton,rows16,rows64,read --out variants.json

For each point what ``attn_tune.mla_decode`` chooses, its kernel for Hopper, its XLA kernel where that takes
milliseconds, its Triton kernel, untuned and with a tile of 16, 32 or 64 rows, and ``read``, which reads as many bytes
and keeps their maximum. A row says microseconds, the terabytes of latents a second, and teraflops a second. A GPU is
needed.
"""

import dataclasses
import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import paged_decode_peers

from attn_tune.ops.paged_decode.operands import Operands
from attn_tune.ops.paged_decode.problem import Problem

# Larger caches take XLA long, and say nothing more.
_MOST_OF_XLA = 32 * 4096


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit status."""
    return paged_decode_peers.record("paged_decode", _PEERS, "deepseek-v3-mla-serving", str(__doc__), arguments)


def _ours(platform: str | None, p: Problem, o: Operands, cfg: Any = None) -> Any:
    import attn_tune

    def call(o: Operands) -> Any:
        return attn_tune.mla_decode(
            o.q[..., : p.v_head_dim],
            o.q[..., p.v_head_dim :],
            o.k,
            o.kv_lens,
            o.page_table,
            softmax_scale=p.scale,
            kv_scale=o.k_scale,
            max_kv_len=p.kv_len,
            workload=p.workload,
            platform=platform,
            cfg=cfg,
        )

    return call, (o,)


def _xla(p: Problem, o: Operands) -> Any:
    if p.batch * p.kv_len > _MOST_OF_XLA:
        return "it takes too long"
    return _ours("xla", p, o)


def _hopper(p: Problem, o: Operands) -> Any:
    from attn_tune.devices.identity import current_device
    from attn_tune.kernels.paged_decode.triton_hopper import space, unsupported

    device = current_device()
    if reason := unsupported(p, "fwd", device):
        return reason
    return _ours("triton_hopper", p, o, space.heuristic(p, device))


def _rows(rows: int, warps: int, p: Problem, o: Operands) -> Any:
    from attn_tune.devices.identity import current_device
    from attn_tune.kernels.paged_decode.triton import space

    if p.q_len * p.num_q_heads < rows:
        return "it has fewer rows"
    device = current_device()
    tile = dataclasses.replace(space.heuristic(p, device), block_q=rows, num_warps=warps)
    if tile.num_programs is not None:
        tile = dataclasses.replace(tile, num_programs=max(1, space.units(device) // space.lanes(p, tile)))
    return _ours("triton", p, o, tile)


_PEERS: dict[str, Callable[[Problem, Operands], Any]] = {
    "auto": functools.partial(_ours, None),
    "triton": functools.partial(_ours, "triton"),
    "hopper": _hopper,
    "xla": _xla,
    "rows16": functools.partial(_rows, 16, 4),
    "rows16w8": functools.partial(_rows, 16, 8),
    "rows32": functools.partial(_rows, 32, 4),
    "rows32w8": functools.partial(_rows, 32, 8),
    "rows64": functools.partial(_rows, 64, 8),
    "read": paged_decode_peers.read,
}

if __name__ == "__main__":
    sys.exit(main())
