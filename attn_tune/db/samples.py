"""Samples as few bytes: each is its distance from the median, zigzag-coded, in groups of seven bits."""

from collections.abc import Sequence

_MORE = 0x80
_LARGEST = 2**63 - 1


def whole_median(samples: Sequence[int]) -> int:
    """The median, rounded down."""
    ordered = sorted(samples)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) // 2


def encode_samples(samples: Sequence[int], median: int) -> bytes:
    """The bytes of ``samples`` (nanoseconds, in the order taken), given their median rounded down.

    Raises:
      ValueError: a sample that 64 bits cannot hold.
    """
    out = bytearray()
    for sample in samples:
        if not 0 < sample <= _LARGEST:
            raise ValueError(f"a sample must be between 1 and {_LARGEST} ns, got {sample}")
        far = sample - median
        left = far << 1 if far >= 0 else (-far << 1) - 1
        while left > 0x7F:
            out.append(left & 0x7F | _MORE)
            left >>= 7
        out.append(left)
    return bytes(out)


def decode_samples(data: bytes, median: int) -> tuple[int, ...]:
    """The inverse of ``encode_samples``.

    Raises:
      ValueError: the bytes end inside a sample.
    """
    found, value, shift = [], 0, 0
    for byte in data:
        if byte & _MORE:
            value |= (byte & 0x7F) << shift
            shift += 7
            continue
        value |= byte << shift
        found.append(median + (value >> 1 ^ -(value & 1)))
        value = shift = 0
    if shift:
        raise ValueError(f"{len(data)} bytes of samples end inside a sample")
    return tuple(found)
