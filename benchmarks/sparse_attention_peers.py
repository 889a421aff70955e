"""Sparse latent attention and its indexer by kernel: one device, interleaved, device time, cold cache.

    python benchmarks/sparse_attention_peers.py --only heads128/1x4kx32k,heads128/128x1x32k --out sparse_mla.json
    python benchmarks/sparse_attention_peers.py --grid deepseek-v3.2-indexer --out indexer.json

For each point of a grid of either op what its public function chooses, and each of its kernels untuned. A row says
microseconds, teraflops a second, and the worst error as a multiple of what is allowed. A GPU is needed.
"""

import argparse
import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import paged_decode_peers

_SPARSE, _INDEXER = "deepseek-v3.2-sparse", "indexer"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit status."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--grid", default=_SPARSE)
    grid = parser.parse_known_args(arguments)[0].grid
    if grid.endswith(_INDEXER):
        return paged_decode_peers.record("indexer", _of(_scores, "triton", "xla"), grid, str(__doc__), arguments)
    peers = _of(_attend, "triton", "triton_hopper", "xla")
    return paged_decode_peers.record("sparse_mla", peers, grid, str(__doc__), arguments)


def _of(call: Callable[..., Any], *kernels: str) -> dict[str, Callable[[Any, Any], Any]]:
    return {"auto": functools.partial(call, None)} | {name: functools.partial(call, name) for name in kernels}


def _attend(platform: str | None, p: Any, o: Any) -> Any:
    import attn_tune

    def call(o: Any) -> Any:
        return attn_tune.sparse_mla(
            o.q[..., : p.v_head_dim],
            o.q[..., p.v_head_dim :],
            o.kv,
            o.indices,
            softmax_scale=p.scale,
            softmax_aux=o.sinks,
            workload=p.workload,
            platform=platform,
        )

    return call, (o,)


def _scores(platform: str | None, p: Any, o: Any) -> Any:
    import attn_tune

    def call(o: Any) -> Any:
        return attn_tune.indexer(
            o.q, o.k, o.weights, o.starts, o.ends, scale=p.scale, workload=p.workload, platform=platform
        )

    return call, (o,)


if __name__ == "__main__":
    sys.exit(main())
