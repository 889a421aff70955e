"""VMEM limits of launches whose need is known between a low and a high estimate."""

from attn_tune.kernels.lang.pallas_tpu.memory import limit_for
from attn_tune.schema.device import Device


def limit_between(device: Device, least_bytes: int, expected_bytes: int) -> int | None:
    """The VMEM limit in KiB for the high estimate, or for the low one where the device has none for the high one.

    None is the compiler's default.
    """
    return limit_for(device, expected_bytes) or limit_for(device, least_bytes)
