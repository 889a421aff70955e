"""VMEM: how much a launch may take on each generation, and how much an array takes of it."""

from attn_tune.schema.device import Device

KIB, MIB = 1024, 1024 * 1024
LANES, SUBLANES = 128, 8
SMEM_BYTES = MIB

# What libtpu 0.0.52 allows a launch that asks for nothing: compiled with scratch of more and more, until it refused.
DEFAULT_KIB = {"v4": 16 * KIB, "v5e": 16 * KIB, "v5p": 16 * KIB, "v6e": 32 * KIB, "v7x": 32 * KIB}
# Limits worth asking for; each generation takes those below its physical VMEM.
LIMITS_KIB = (32 * KIB, 64 * KIB, 96 * KIB)

GENERATIONS = tuple(DEFAULT_KIB)
# Of devices that no kernel here supports, so that asking about them is no error.
_LEAST_KIB = min(DEFAULT_KIB.values())


def round_up(length: int, multiple: int) -> int:
    """The least multiple of ``multiple`` that is not below ``length``."""
    return -(-length // multiple) * multiple


def limit_for(device: Device, needed_bytes: int) -> int | None:
    """The least limit in KiB that ``needed_bytes`` fit, None where the default is enough or nothing is."""
    if needed_bytes <= DEFAULT_KIB.get(device.family, _LEAST_KIB) * KIB:
        return None
    fitting = (kib for kib in LIMITS_KIB if needed_bytes <= kib * KIB < device.shared_bytes)
    return next(fitting, None)


def limit_of(device: Device, limit_kib: int | None) -> int:
    """Bytes of VMEM that a launch with this limit may take."""
    return KIB * (DEFAULT_KIB.get(device.family, _LEAST_KIB) if limit_kib is None else limit_kib)


def tiled_bytes(rows: int, width: int, itemsize: int) -> int:
    """Bytes of a ``[rows, width]`` array in VMEM: whole tiles of 8 sublanes (16 for 16-bit types) by 128 lanes."""
    sublanes = SUBLANES * max(1, 4 // itemsize)
    return -(-rows // sublanes) * sublanes * -(-width // LANES) * LANES * itemsize


def limit_reason(device: Device, needed_bytes: int, limit_kib: int | None) -> str | None:
    """The reason that a launch that needs so much under this limit cannot run on the device, or None."""
    limit = limit_of(device, limit_kib)
    if limit_kib is not None and limit >= device.shared_bytes:
        physical = device.shared_bytes / MIB
        return f"a limit of {limit / MIB:.0f} MiB is not below {device}'s {physical:.0f} MiB of VMEM"
    if needed_bytes > limit:
        needed = needed_bytes / MIB
        return f"its blocks need about {needed:.1f} MiB of VMEM; its limit on {device} is {limit / MIB:.0f} MiB"
    return None
