"""Problems that FlashAttention-4's kernels for Hopper cannot do, and configs that cannot be built or cannot fit."""

from collections.abc import Iterator

from attn_tune.kernels.flash_attention._fa4.config import WARPGROUP_ROWS, BackwardConfig, ForwardConfig
from attn_tune.kernels.flash_attention._fa4.shapes import has_mask, padded_dims, round_up
from attn_tune.kernels.lang.libraries.features import lacking, not_on, visible_bounds
from attn_tune.kernels.lang.libraries.mosaic import HOPPER, shared_bytes, shared_reason
from attn_tune.kernels.lang.libraries.versions import wrong_version
from attn_tune.ops.flash_attention.problem import Problem
from attn_tune.schema.device import Device

EXTRA, LIBRARIES, MODULES = "fa4", ("fa4-jax", "nvidia-cutlass-dsl"), ("cutlass", "fa4_jax")
# Its classes are no promised interface: what an earlier or later series calls differently is not guessed.
_KNOWN = {"fa4-jax": ((0, 1), (0, 2)), "nvidia-cutlass-dsl": ((4, 8), (5, 0))}
_MAX_HEAD_DIM, _MAX_COLUMNS = 256, 256
# Above this head dim the copies of the backward are cut in pieces of 64.
_WHOLE_HEAD_DIM = 192
# Registers that the kernels give a thread that computes, by the number of warpgroups; and how many of them, for
# addresses and statistics, can hold no part of a tile.
_REGISTERS, _OTHER_REGISTERS = {1: 256, 2: 240, 3: 160}, 16
_THREADS = 128
# Threads of the launch before the backward, each of which owns one row's statistics or none.
_MOST_ROWS = 256


def unsupported(problem: Problem, direction: str, device: Device) -> str | None:
    """The reason that the kernels cannot do the problem on this device at all, or None."""
    if reason := not_on(device, (HOPPER, HOPPER), "this adapter of FlashAttention-4"):
        return reason
    if problem.dtype == "float32":
        return "it takes bfloat16 and float16 only"
    for name, dim in (("head_dim", problem.head_dim), ("v_head_dim", problem.v_head_dim)):
        if dim % 8 or dim > _MAX_HEAD_DIM:
            return f"{name}={dim} must be a multiple of 8 and at most {_MAX_HEAD_DIM}"
    reason = lacking(problem, known=("soft_cap", "segments", "positions")) or _of_rows(problem)
    if direction == "bwd":
        reason = reason or _of_backward(problem)
    return reason or next(filter(None, (wrong_version(name, *_KNOWN[name], EXTRA) for name in LIBRARIES)), None)


def _of_rows(p: Problem) -> str | None:
    _, right = visible_bounds(p)
    if not p.has_positions and right is not None and p.offset + right < 0:
        return "its first rows see no key, and its loop begins with one"
    return None


def _of_backward(p: Problem) -> str | None:
    if p.group_size > 1 and p.head_dim != p.v_head_dim:
        return "its backward of grouped heads needs head_dim == v_head_dim"
    if max(p.head_dim, p.v_head_dim) > _WHOLE_HEAD_DIM and (p.head_dim % 64 or p.v_head_dim % 64):
        return f"its backward wants head dims above {_WHOLE_HEAD_DIM} to be multiples of 64"
    return None


def forward_infeasible(problem: Problem, device: Device, config: ForwardConfig) -> str | None:
    """The reason that a forward config cannot be built or does not fit, or None."""
    p, c = problem, config
    groups = c.block_q // WARPGROUP_ROWS
    if c.block_k > _MAX_COLUMNS:
        return f"block_k={c.block_k} is above {_MAX_COLUMNS}, the widest product of a warpgroup"
    if c.pack_heads:
        if p.group_size == 1:
            return "pack_heads needs query heads that share a key head"
        if c.block_q % p.group_size:
            return f"pack_heads needs block_q={c.block_q} in whole groups of {p.group_size} heads"
        if has_mask(p):
            return "packed heads do not go with segments or positions"
    h, v = round_up(p.head_dim, 16), round_up(p.v_head_dim, 16)
    # Two accumulators; the weights of a tile in half the size stay beside them if they go into a product from there.
    held = (c.block_k + v) // 2 + (c.block_k // 4 if c.p_in_registers else 0)
    if reason := _register_reason(groups, held):
        return reason
    tiles = [2 * n for n in (c.block_q * h, c.num_stages * c.block_k * h, c.num_stages * c.block_k * v)]
    if 2 * c.block_q * v > sum(tiles):
        return "a tile of the output does not fit where the operands were"
    if not c.p_in_registers:
        tiles.append(2 * c.block_q * c.block_k)
    return shared_reason(device, shared_bytes([_barriers(2 + 4 * c.num_stages), *tiles], 0))


def backward_infeasible(problem: Problem, device: Device, config: BackwardConfig) -> str | None:
    """The reason that a backward config cannot be built or does not fit, or None."""
    p, c = problem, config
    if p.group_size > 1 and c.warpgroups != 2:
        return "grouped heads need two warpgroups"
    if c.block_q > _MOST_ROWS:
        return f"block_q={c.block_q} is above {_MOST_ROWS}, the rows of the launch before it"
    if reason := next(_shape_reasons(p, c), None):
        return reason
    if reason := _register_reason(c.warpgroups, held_registers(p, c)):
        return reason
    return shared_reason(device, backward_shared(p, c))


def held_registers(p: Problem, c: BackwardConfig) -> int:
    """Registers a thread for dk and dv, and for the larger of logits with their gradients and dq with those."""
    threads = _THREADS * c.warpgroups
    h, v = padded_dims(p)
    logits = c.block_q * c.block_k // threads
    dq = c.block_q * h // (_THREADS * c.dq_warpgroups)
    return c.block_k * (h + v) // threads + max(2 * logits, dq)


def backward_shared(p: Problem, c: BackwardConfig) -> int:
    """Bytes of shared memory of the backward's main launch."""
    h, v = padded_dims(p)
    rows = 4 * round_up(c.block_q, 64)
    weights = 2 * c.ds_stages * c.block_q * c.block_k
    # With the keys as rows the weights go into dv from registers.
    from_registers = c.transpose_s and not c.transpose_dkv and c.groups_s == 1 and c.groups_dkv == c.warpgroups
    small = round_up(16 * (c.stages + c.dout_stages), 128) + rows * (c.stages + c.dout_stages)
    tiles = [
        small,
        2 * c.stages * c.block_q * h,
        2 * c.block_k * v,
        2 * c.block_k * h,
        2 * c.dout_stages * c.block_q * v,
        0 if from_registers else weights,
        weights,
        4 * c.block_q * h,
    ]
    return shared_bytes(tiles, 0)


def _shape_reasons(p: Problem, c: BackwardConfig) -> Iterator[str]:
    h, v = padded_dims(p)
    groups = c.warpgroups
    yield from _product("logits", c.block_q, c.block_k, c.groups_s, groups // c.groups_s, c.transpose_s)
    for name, dim in (("dk", h), ("dv", v)):
        yield from _product(name, c.block_k, dim, c.groups_dkv, groups // c.groups_dkv, c.transpose_dkv)
    yield from _product("dq", c.block_q, h, c.groups_dq, c.dq_warpgroups // c.groups_dq, c.transpose_dq)
    for name, elements, threads in (
        ("dq", c.block_q * h, _THREADS * c.dq_warpgroups),
        ("dq", c.block_q * h, _MOST_ROWS),
        ("dk", c.block_k * h if p.group_size > 1 else 0, _THREADS * groups),
    ):
        if elements // 4 % threads:
            yield f"a tile of {name} in float32 cannot be copied by {threads} threads"


def _product(name: str, rows: int, columns: int, along: int, across: int, transposed: bool) -> Iterator[str]:
    """Reasons why warpgroups cannot share a product of ``rows`` x ``columns``: ``along`` its rows, ``across`` them."""
    sides = [(rows, along), (columns, across)]
    (tall, tall_groups), (wide, wide_groups) = reversed(sides) if transposed else sides
    if tall % (WARPGROUP_ROWS * tall_groups):
        yield f"{tall_groups} warpgroups of {WARPGROUP_ROWS} rows cannot share the {tall} of {name}"
    if wide % (8 * wide_groups) or wide // wide_groups > _MAX_COLUMNS:
        yield f"{wide_groups} warpgroups cannot share the {wide} columns of {name} in units of 8"


def _register_reason(groups: int, held: int) -> str | None:
    most = _REGISTERS[groups] - _OTHER_REGISTERS
    if held > most:
        return f"its tiles take {held} registers a thread; with {groups} warpgroups there are {most}"
    return None


def _barriers(count: int) -> int:
    return 8 * count
