"""Problems and devices that the kernel does not support, and blocks that do not fit."""

from attn_tune.kernels.lang.pallas_tpu.cache_limits import refuses_problem, refuses_tables
from attn_tune.kernels.lang.pallas_tpu.memory import limit_reason, round_up, tiled_bytes
from attn_tune.kernels.paged_decode.pallas_tpu_paged.config import Config
from attn_tune.kernels.paged_decode.pallas_tpu_paged.width import table_width
from attn_tune.ops.fields.cache import CODES
from attn_tune.ops.paged_decode.problem import Problem
from attn_tune.schema.device import Device

_FLOAT32 = 4


def unsupported(problem: Problem, direction: str, device: Device) -> str | None:
    """The reason that the kernel cannot do the problem on this device at all, or None."""
    p = problem
    if reason := refuses_problem(p, device, layout="head_first", whose="JAX's paged attention"):
        return reason
    if p.dtype == "float32":
        return "it computes with 16-bit keys and values: it would round a float32 cache"
    if p.kv_scale == "token":
        return "it wants a scale of each element: those of tokens would be written out at every call"
    return refuses_tables(device, _tables(p, 1))


def infeasible(problem: Problem, device: Device, config: Config) -> str | None:
    """The reason that a config cannot run, or None."""
    p, pages = problem, config.pages_per_compute_block
    if config.megacore_mode and device.units < 2:
        return f"megacore_mode={config.megacore_mode!r} needs two cores; {device} has one"
    shared = {"kv_head": ("k", p.num_kv_heads), "batch": ("b", p.batch)}
    if config.megacore_mode:
        name, count = shared[config.megacore_mode]
        if count % 2:
            return f"megacore_mode={config.megacore_mode!r} halves {name}={count}, which is odd"
    width = table_width(p.input_width, p.page_size, p.window)
    if pages > 1 and pages >= 2 * width:
        return f"pages_per_compute_block={pages} is twice what a sequence has: {width} whole pages"
    if reason := refuses_tables(device, _tables(p, pages)):
        return reason
    return limit_reason(device, vmem_bytes(p, config), config.vmem_limit_kib)


def tables(batch: int, width: int) -> dict[str, int]:
    """Bytes of scalar memory for a page table of so many rows and columns."""
    return {"page table": 4 * batch * width, "lengths": 4 * batch}


def _tables(p: Problem, pages: int) -> dict[str, int]:
    """The same for blocks of so many pages."""
    return tables(p.batch, round_up(table_width(p.input_width, p.page_size, p.window), pages))


def vmem_bytes(problem: Problem, config: Config) -> int:
    """An estimate of the VMEM: two copies of each block that passes. What is computed stays in registers."""
    p = problem
    # A page fills whole tiles, however short it is.
    page = tiled_bytes(p.page_size, p.head_dim, 1 if p.cache_dtype in CODES else 2)
    rows = tiled_bytes(p.q_len * p.group_size, p.head_dim, _FLOAT32)
    return 2 * (2 * config.pages_per_compute_block * page + 4 * rows)
