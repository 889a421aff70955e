"""Needs of kernels of JAX's Pallas library for TPU over a cache in pages, and the problems that none of them can do."""

from typing import Any

from attn_tune.kernels.lang.pallas_tpu.memory import GENERATIONS, KIB, LANES
from attn_tune.kernels.lang.pallas_tpu.scalars import TABLES_BYTES
from attn_tune.schema.device import Device
from attn_tune.schema.errors import UnsupportedError

DECIDES_NO_CODE = "what is refused; a row holds its config"


def refuses_problem(problem: Any, device: Device, *, layout: str, whose: str) -> str | None:
    """The reason that no such kernel can do a problem on a device, or None.

    Args:
      layout: the one that the kernel reads.
      whose: the kernel, for the message.
    """
    p = problem
    if device.platform != "tpu":
        return f"{whose} for TPU runs on TPUs, not on {device.platform}"
    if device.family not in GENERATIONS:
        return f"{whose} is known to run on TPU {', '.join(GENERATIONS)}, not on {device.family}"
    refusals = {
        "TPUs have no float16 matrix unit, and Mosaic cannot load float16": p.dtype == "float16",
        "it reads a cache in pages; page=0 is a contiguous one": not p.page_size,
        f"it reads a cache of layout {layout}, not {p.layout}; converting one would copy it": p.layout != layout,
        f"it needs keys and values of one width, not h={p.head_dim} and v={p.v_head_dim}": p.head_dim != p.v_head_dim,
        f"h={p.head_dim} is no multiple of {LANES}, the lanes of a register": p.head_dim % LANES,
    }
    return next((reason for reason, is_so in refusals.items() if is_so), None)


def refuses_tables(device: Device, tables: dict[str, int]) -> str | None:
    """The reason that tables cannot lie in scalar memory together, or None.

    Args:
      tables: their bytes by name.
    """
    reason = _short_of_scalars(tables)
    return reason and f"{reason} on {device}"


def check_tables(tables: dict[str, int]) -> None:
    """Check that the tables of a call fit scalar memory; they may be larger than those that its problem tells of.

    Raises:
      UnsupportedError: they do not.
    """
    if reason := _short_of_scalars(tables):
        raise UnsupportedError(f"{reason}; give a narrower page_table, or platform='xla'")


def _short_of_scalars(tables: dict[str, int]) -> str | None:
    if sum(tables.values()) <= TABLES_BYTES:
        return None
    named = " and ".join(f"{size // KIB} KiB of {name}" for name, size in tables.items() if size >= KIB)
    return f"scalar memory holds {TABLES_BYTES // KIB} KiB, not {named}"
