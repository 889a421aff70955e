"""The config that the XLA kernel takes untuned."""

from attn_tune.kernels.lang.xla import chunks
from attn_tune.ops.block_sparse_attention.problem import Problem
from attn_tune.schema.device import Device


def heuristic[C: chunks.Chunks](config: type[C], problem: Problem, device: Device) -> C:
    """The chunks nearest to the mask's blocks: larger ones hold pairs that no block lists, smaller ones are more."""
    return chunks.heuristic(config, problem, device, most=(problem.mask_block_q, problem.mask_block_k))
