"""Problems and devices that splash attention does not support, and launches that do not fit."""

from attn_tune.kernels.block_sparse_attention.pallas_tpu_splash.config import DkvConfig, Launch
from attn_tune.kernels.lang.pallas_tpu.memory import (
    GENERATIONS,
    LANES,
    SUBLANES,
    limit_reason,
    tiled_bytes,
)
from attn_tune.kernels.lang.pallas_tpu.scalars import refuses_visits, table_bytes
from attn_tune.ops.block_sparse_attention.problem import Problem
from attn_tune.schema.device import Device

_FLOAT32 = 4
# Bytes of an entry of each table of visited blocks.
_TABLE_ENTRIES = (1, 2)
# Of one step's logits as the compiler keeps them: of a forward, of a backward, and more with a soft cap.
_COPIES, _GRADIENT_COPIES, _CAP_COPIES = 1.0, 1.5, 1.0


def unsupported(problem: Problem, direction: str, device: Device) -> str | None:
    """The reason that splash attention cannot do the problem on this device at all, or None."""
    if device.platform != "tpu":
        return f"splash attention runs on TPUs, not on {device.platform}"
    if device.family not in GENERATIONS:
        return f"splash attention is known to run on TPU {', '.join(GENERATIONS)}, not on {device.family}"
    if problem.dtype == "float16":
        return "TPUs have no float16 matrix unit, and Mosaic cannot load float16"
    if min(problem.mask_block_q, problem.mask_block_k) < LANES:
        return f"its blocks have at least {LANES} rows and keys, those of the mask fewer"
    if problem.has_segments and problem.batch > 1:
        return "it has one row of segment ids; call it for one sequence at a time"
    return refuses_visits(smem_bytes(problem, problem.mask_block_q, problem.mask_block_k))


def infeasible(problem: Problem, device: Device, launch: Launch) -> str | None:
    """The reason that one launch cannot run, or None."""
    for name, block, whole in (
        ("block_q", launch.block_q, problem.mask_block_q),
        ("block_kv", launch.block_kv, problem.mask_block_k),
    ):
        if whole % block or block % LANES:
            return f"{name}={block} is no multiple of {LANES} that divides the mask's block of {whole}"
    if reason := refuses_visits(smem_bytes(problem, launch.block_q, launch.block_kv)):
        return reason
    return limit_reason(device, vmem_bytes(problem, launch), launch.vmem_limit_kib)


def smem_bytes(problem: Problem, block_q: int, block_kv: int) -> int:
    """Scalar memory of both tables of visited blocks, those of all heads where each has its own; prefetched whole."""
    rows, columns = -(-problem.q_len // block_q), -(-problem.kv_len // block_kv)
    tables = 1 if problem.block_dims == "11" else problem.batch * problem.num_q_heads
    return tables * sum(table_bytes(rows, columns, itemsize) for itemsize in _TABLE_ENTRIES)


def vmem_bytes(problem: Problem, launch: Launch) -> int:
    """An estimate of the VMEM: two copies of each block that passes, the accumulators, the logits of one step."""
    size = _FLOAT32 if problem.dtype == "float32" else 2
    h, v = problem.head_dim, problem.v_head_dim
    q, kv = launch.block_q, launch.block_kv
    numbers = tiled_bytes(q, LANES, _FLOAT32) + tiled_bytes(kv, LANES, _FLOAT32)
    tokens = 2 * (tiled_bytes(q, h, size) + tiled_bytes(q, v, size))
    tokens += 2 * (tiled_bytes(kv, h, size) + tiled_bytes(kv, v, size))
    rows = 2 * tiled_bytes(SUBLANES, q, _FLOAT32)
    owned = kv if isinstance(launch, DkvConfig) else q
    sums = tiled_bytes(owned, h, _FLOAT32) + tiled_bytes(owned, v, _FLOAT32)
    copies = _COPIES if hasattr(launch, "block_kv_compute") and not isinstance(launch, DkvConfig) else _GRADIENT_COPIES
    copies += _CAP_COPIES if problem.soft_cap is not None else 0
    columns = getattr(launch, "block_kv_compute", kv)
    return 2 * (tokens + rows + numbers) + sums + numbers + int(copies * tiled_bytes(q, columns, _FLOAT32))
