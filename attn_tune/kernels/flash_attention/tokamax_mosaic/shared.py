"""Shared memory of the launches of tokamax's Mosaic GPU attention on Hopper, as their allocations add up."""

from attn_tune.kernels.flash_attention.tokamax_mosaic.config import (
    DkvConfig,
    DqConfig,
    ForwardConfig,
    Launch,
)
from attn_tune.kernels.lang.libraries.mosaic import FORWARD_GROUPS, shared_bytes
from attn_tune.ops.flash_attention.problem import Problem

# Operands have 16 bits, numbers of a row 32.
_SIZE, _NUMBER = 2, 4
# The output leaves in tiles of so many rows and columns, two on their way at most.
_OUT_ROWS, _OUT_COLUMNS, _OUT_SLOTS = 64, 64, 2
# A vector of the mask is copied from this many keys on.
_LEAST_MASK_KEYS = 128


def shared(problem: Problem, launch: Launch) -> int:
    """Bytes of one block."""
    if isinstance(launch, ForwardConfig):
        return _forward(problem, launch)
    return _dq(problem, launch) if isinstance(launch, DqConfig) else _dkv(problem, launch)


def loads_mask(problem: Problem, launch: Launch) -> bool:
    """Whether tiles of the dense mask pass through shared memory."""
    dims = problem.mask_dims
    if dims is None or dims[3] == "1":
        return False
    return dims[2] != "1" or launch.block_kv >= _LEAST_MASK_KEYS


def _loads_bias(p: Problem) -> bool:
    return p.bias_dims is not None and "1" not in p.bias_dims[2:]


def _forward(p: Problem, c: ForwardConfig) -> int:
    h, v = _padded(p.head_dim, 16), _padded(p.v_head_dim, 16)
    rows = FORWARD_GROUPS * c.block_q
    columns = _OUT_COLUMNS if v % _OUT_COLUMNS == 0 else v
    slots = min(_OUT_SLOTS, (c.block_q // _OUT_ROWS) * (v // columns))
    operands = [rows * h * _SIZE, c.num_stages * c.block_kv * h * _SIZE]
    results = [FORWARD_GROUPS * slots * _OUT_ROWS * columns * _SIZE, *[rows * _NUMBER] * 2]
    # What leaves may lie where queries and keys lay, unless the next rows' queries are on their way already.
    union = [max(shared_bytes(operands, 0), shared_bytes(results, 0))]
    arrays = [*operands, *results] if c.persistent else union
    arrays.append(c.num_stages * c.block_kv * v * _SIZE)
    barriers = 1 + 2 * c.num_stages
    if _loads_bias(p):
        arrays.append(c.num_stages * rows * c.block_kv * _SIZE)
    if loads_mask(p, c):
        is_vector = p.mask_dims is not None and p.mask_dims[2] == "1"
        arrays.append(c.num_stages * (1 if is_vector else rows) * c.block_kv)
        barriers += 0 if is_vector else c.num_stages
    return shared_bytes(arrays, barriers)


def _dq(p: Problem, c: DqConfig) -> int:
    h, v = _padded(p.head_dim, 64), _padded(p.v_head_dim, 64)
    rows = c.compute_warpgroups * c.block_q
    stages = min(c.num_stages, -(-p.kv_len // c.block_kv))
    arrays = [rows * h * _SIZE, rows * v * _SIZE]
    if p.bias_dims is not None:
        arrays.append(rows * c.block_kv * _SIZE)
    arrays += [stages * c.block_kv * h * _SIZE, stages * c.block_kv * v * _SIZE]
    passing = 2
    if _loads_bias(p):
        arrays.append(stages * rows * c.block_kv * _SIZE)
        passing += 1
    if loads_mask(p, c):
        is_vector = p.mask_dims is not None and p.mask_dims[2] == "1"
        arrays.append(stages * (1 if is_vector else rows) * c.block_kv)
        passing += 1
    return shared_bytes(arrays, c.compute_warpgroups + (1 + passing) * stages)


def _dkv(p: Problem, c: DkvConfig) -> int:
    h, v = _padded(p.head_dim, 64), _padded(p.v_head_dim, 64)
    keys = c.compute_warpgroups * c.block_kv
    stages = min(c.num_stages, -(-p.q_len // c.block_q))
    arrays = [keys * h * _SIZE, keys * v * _SIZE]
    arrays += [stages * c.block_q * h * _SIZE, stages * c.block_q * v * _SIZE]
    arrays += [stages * c.block_q * _NUMBER] * 3
    passing = 5
    if _loads_bias(p):
        arrays.append(stages * c.block_q * keys * _SIZE)
        passing += 1
    if p.mask_dims is not None and "1" not in p.mask_dims[2:]:
        arrays.append(stages * c.block_q * keys)
        passing += 1
    return shared_bytes(arrays, c.compute_warpgroups + (1 + passing) * stages)


def _padded(dim: int, step: int) -> int:
    return -(-dim // step) * step
