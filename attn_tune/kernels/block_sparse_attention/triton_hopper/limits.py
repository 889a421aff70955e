"""Problems that the block-sparse forward for Hopper refuses, and tiles that cannot fit."""

import dataclasses

from attn_tune.kernels.lang.gluon.attention.config import BLOCK_Q, ForwardConfig
from attn_tune.kernels.lang.gluon.attention.plan import overlaps, shared_bytes
from attn_tune.kernels.lang.triton.limits import refuses_device, refuses_triton, shared_limit
from attn_tune.ops.block_sparse_attention.problem import Problem
from attn_tune.schema.device import Device

HEAD_DIMS = (64, 128)
LEAST_KEYS = 32
# Multiprocessors of a device that does not say.
UNITS = 132
_HOPPER = 90
# The shared device code calls its copies by the names of this version.
_OLDEST_TRITON = (3, 9)


def masked(problem: Problem) -> Problem:
    """The problem without lengths, which say all that its segments say, and need no comparing of ids."""
    return dataclasses.replace(problem, has_segments=False, has_lengths=False) if problem.has_lengths else problem


def unsupported(problem: Problem, direction: str, device: Device) -> str | None:
    """The reason that this kernel cannot do the problem on this device, or None."""
    del direction  # a forward only
    p = problem
    if reason := refuses_device(device):
        return reason
    if device.compute_capability != _HOPPER:
        return f"it is written for the warpgroup instructions of Hopper (sm_90); {device} is {device.family}"
    known = ", ".join(map(str, HEAD_DIMS))
    asked = {
        "warpgroups multiply 16-bit numbers; dtype is float32": p.dtype == "float32",
        f"head_dim={p.head_dim} and v_head_dim={p.v_head_dim} differ": p.head_dim != p.v_head_dim,
        f"head_dim={p.head_dim} is none of {known}": p.head_dim not in HEAD_DIMS,
        f"bq={p.mask_block_q} is below the {BLOCK_Q} rows of its tiles": p.mask_block_q < BLOCK_Q,
        f"bk={p.mask_block_k} is below {LEAST_KEYS}: a tile of keys is part of a block": p.mask_block_k < LEAST_KEYS,
        f"scale={p.scale!r} is not positive": p.scale <= 0,
    }
    return next((reason for reason, wanted in asked.items() if wanted), None) or refuses_triton(_OLDEST_TRITON)


def infeasible(problem: Problem, device: Device, config: ForwardConfig) -> str | None:
    """The reason that a config cannot run on the device, or None."""
    p = masked(problem)
    units = device.units or UNITS
    heads = p.batch * p.num_q_heads
    needed, limit = shared_bytes(p, config), shared_limit(device)
    asked = {
        f"block_k={config.block_k} is no part of the mask's blocks of {p.mask_block_k}": config.block_k
        > p.mask_block_k,
        f"its tiles need {needed} bytes of shared memory; {device.family} has {limit}": needed > limit,
        "its accumulators, logits and weights need more than the 240 registers of a thread": config.block_k > 128,
        "its tiles leave no room for the queries that are to come": not overlaps(p, config),
        f"heads_per_section={config.heads_per_section} does not divide the {heads} heads of the batch": heads
        % config.heads_per_section
        > 0,
        f"its {config.num_programs} programs want a multiprocessor each; {device} has {units}": config.num_programs
        > units,
    }
    return next((reason for reason, holds in asked.items() if holds), None)
