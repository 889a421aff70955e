"""Latent attention (MLA) of prompts, chunks and mixed steps: one run, one device, interleaved, device time, cold cache.

    python benchmarks/mla_ragged_peers.py --rounds 7 --out mla_ragged.json
    python benchmarks/mla_ragged_peers.py --only heads16 --peers auto,triton_latent,rows32 --out variants.json

For each point of a grid what ``attn_tune.mla_ragged`` chooses, its kernels untuned, and ``triton_latent`` with other
tiles and without a launch of its own for sequences that decode. A row says microseconds, teraflops a second, and the
worst error as a multiple of what is allowed. ``mla_decode_peers.py`` times decoding, whose products are the same. A GPU
is needed.
"""

import dataclasses
import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from paged_decode_peers import record

from attn_tune.ops.ragged_paged.operands import Operands
from attn_tune.ops.ragged_paged.problem import Problem


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit status."""
    return record("ragged_paged", _PEERS, "deepseek-v3-mla-ragged", str(__doc__), arguments)


def _ours(platform: str | None, knobs: Mapping[str, Any], p: Problem, o: Operands) -> Any:
    import attn_tune
    from attn_tune.devices.identity import current_device
    from attn_tune.kernels.registry import get_kernel

    cfg = None
    if knobs:
        device, search = current_device(), get_kernel(f"ragged_paged/{platform}").searches["fwd"]
        cfg = dataclasses.replace(search.heuristic(p, device), **knobs)
        if search.infeasible is not None and (reason := search.infeasible(p, device, cfg)):
            return reason

    def call(o: Operands) -> Any:
        return attn_tune.mla_ragged(
            o.q[..., : p.v_head_dim],
            o.q[..., p.v_head_dim :],
            o.k,
            o.kv_lens,
            o.cu_q_lens,
            o.page_table,
            softmax_scale=p.scale,
            causal=p.causal,
            kv_scale=o.k_scale,
            max_kv_len=p.kv_len,
            workload=p.workload,
            platform=platform,
            cfg=cfg,
        )

    return call, (o,)


def _tile(rows: int, keys: int, warps: int, stages: int) -> Callable[[Problem, Operands], Any]:
    knobs = {"block_q": rows, "block_k": keys, "num_warps": warps, "num_stages": stages}
    return functools.partial(_ours, "triton_latent", knobs)


_PEERS: dict[str, Callable[[Problem, Operands], Any]] = {
    "auto": functools.partial(_ours, None, {}),
    "triton_hopper_latent": functools.partial(_ours, "triton_hopper_latent", {}),
    "triton_latent": functools.partial(_ours, "triton_latent", {}),
    "xla": functools.partial(_ours, "xla", {}),
    "rows64": _tile(64, 64, 8, 3),
    "rows64k32": _tile(64, 32, 8, 4),
    "rows32": _tile(32, 64, 4, 3),
    "rows32w8": _tile(32, 64, 8, 3),
    "rows16": _tile(16, 64, 4, 3),
    "one_launch": functools.partial(_ours, "triton_latent", {"decode_programs": None, "decode_block_k": 64}),
}

if __name__ == "__main__":
    sys.exit(main())
