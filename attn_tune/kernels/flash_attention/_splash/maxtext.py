"""The flags of MaxText that choose the config of JAX's splash attention.

MaxText hands them to ``splash_attention_kernel.BlockSizes``: blocks of each launch, and one set of layouts for all of
them (``AttentionOp.tpu_flash_attention``, 2026-08).
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

from attn_tune.kernels.flash_attention._splash.config import ComputedLaunch, FusedLaunch, Launch
from attn_tune.kernels.knobs import parts_of

FORWARD = ("flash_attention/pallas_tpu_splash",)
BACKWARD = ("flash_attention/pallas_tpu_splash", "flash_attention/pallas_tpu_splash_fused")
_OPERANDS = ("q", "k", "v")


class Flags(NamedTuple):
    """Flags, and what they cannot say.

    Attributes:
      values: the flags by name.
      remarks: sentences about knobs that MaxText has no flag for.
    """

    values: dict[str, Any]
    remarks: tuple[str, ...]


def flags(forward: Any = None, backward: Any = None) -> Flags:
    """The flags of a forward's config, of a backward's, or of both."""
    launches: list[Launch] = []
    values: dict[str, Any] = {"attention": "flash", "use_tokamax_splash": False}
    if forward is not None:
        launches.append(forward)
        values |= _blocks("", forward)
    if backward is not None:
        values["sa_use_fused_bwd_kernel"] = isinstance(backward, FusedLaunch)
        for part, launch in parts_of(backward):
            launches.append(launch)
            values |= _blocks("_dq" if part == "dq" else "_dkv", launch)
    layouts, remarks = _layouts(launches)
    limits = sorted({launch.vmem_limit_kib for launch in launches if launch.vmem_limit_kib is not None})
    if limits:
        flag = f"--xla_tpu_scoped_vmem_limit_kib={limits[-1]}"
        remarks = (*remarks, f"it was tuned with a VMEM limit of its own: LIBTPU_INIT_ARGS={flag}")
    return Flags(values | layouts, remarks)


def _blocks(suffix: str, launch: Launch) -> dict[str, int]:
    found = {f"sa_block_q{suffix}": launch.block_q, f"sa_block_kv{suffix}": launch.block_kv}
    if isinstance(launch, ComputedLaunch):
        found[f"sa_block_kv{suffix}_compute"] = launch.block_kv_compute
    return found


def _layouts(launches: Iterable[Launch]) -> tuple[dict[str, str], tuple[str, ...]]:
    """The layouts that all launches have; where they differ the flags keep their default."""
    launches = list(launches)
    found: dict[str, str] = {}
    for operand in _OPERANDS:
        names = {getattr(launch, f"{operand}_layout") for launch in launches}
        if len(names) > 1:
            return {}, ("its launches have layouts of their own, MaxText one for all: they are left at the default",)
        found[f"sa_{operand}_layout"] = names.pop().upper()
    return found, ()
