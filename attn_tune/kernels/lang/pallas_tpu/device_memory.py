"""Memory of a whole device: arrays that a kernel makes beside its operands and that may fill it.

A kernel whose arrays would is refused: XLA's reads and writes its operands alone, and a call must not end in what
another kernel would do.
"""

from attn_tune.schema.device import Device

# GiB of one device of each generation.
_GIB = {"v4": 32, "v5e": 16, "v5p": 95, "v6e": 32, "v7x": 96}


def refuses_array(device: Device, what: str, size: int, copies: int) -> str | None:
    """The reason that an array may not be made, which would take more than half of the memory, or None.

    Args:
      what: the array, for the message.
      size: its bytes.
      copies: those that are alive at once.
    """
    memory = _GIB[device.family]
    if 2 * copies * size <= memory * 2**30:
        return None
    times = f"{copies} times " if copies > 1 else ""
    return f"it has {what} in memory, {times}{size / 2**30:.1f} GiB: more than half of the {memory} GiB of {device}"
