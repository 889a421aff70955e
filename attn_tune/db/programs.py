"""What the compiler made of a config, in one integer: the first 48 bits of the code's digest and the time it took.

The digest tells equal programs of one problem from others, and nothing else rests on it: with a thousand programs in a
problem the chance that two are taken for one is 2e-9. The time has 12 significant bits (0.02 %), in steps of at least
0.1 ms.
"""

import hashlib
import math

from attn_tune.schema.digest import TAG

DIGITS = 12
# Of this package's digests: whole, and as they are read back.
_LENGTHS = (len(TAG) + 32, len(TAG) + DIGITS)
_TIME_BITS = 16
_TIME_MASK = (1 << _TIME_BITS) - 1
_MANTISSA_BITS = 12
_MANTISSA_MASK = (1 << _MANTISSA_BITS) - 1
_LARGEST_EXPONENT = 15
# Zero is "unknown", so no time at all is a zero with an exponent.
_NO_TIME = 1 << _MANTISSA_BITS
_STEPS_PER_MS = 10


def pack_program(digest: str, compile_ms: float | None) -> int | None:
    """Both as a signed 64-bit integer, None when neither is known. ``digest`` is ``""`` or any text."""
    packed = _digest_bits(digest) << _TIME_BITS | _time_bits(compile_ms)
    return (packed - (1 << 64) if packed >> 63 else packed) or None


def unpack_program(packed: int | None) -> tuple[str, float | None]:
    """The digest as it is told from others, ``"b2:"`` and 12 hexadecimal digits, and the milliseconds.

    Whoever looks at a digest must look at it this way: ``short_digest`` of a longer one is equal to it.
    """
    packed = (packed or 0) & (1 << 64) - 1
    bits, time = packed >> _TIME_BITS, packed & _TIME_MASK
    digest = f"{TAG}{bits:0{DIGITS}x}" if bits else ""
    steps = (time & _MANTISSA_MASK) << (time >> _MANTISSA_BITS)
    return digest, steps / _STEPS_PER_MS if time else None


def short_digest(digest: str) -> str:
    """What is left of a digest that was stored."""
    return unpack_program(pack_program(digest, None))[0]


def _digest_bits(digest: str) -> int:
    if not digest:
        return 0
    if len(digest) in _LENGTHS and digest.startswith(TAG):
        try:
            return int(digest[len(TAG) : len(TAG) + DIGITS], 16) or 1
        except ValueError:
            pass
    return int(hashlib.blake2b(digest.encode(), digest_size=DIGITS // 2).hexdigest(), 16) or 1


def _time_bits(compile_ms: float | None) -> int:
    if compile_ms is None or math.isnan(compile_ms):
        return 0
    largest = _MANTISSA_MASK << _LARGEST_EXPONENT
    steps = round(min(max(compile_ms * _STEPS_PER_MS, 0.0), largest))
    exponent = max(0, steps.bit_length() - _MANTISSA_BITS)
    mantissa = (steps + (1 << exponent >> 1)) >> exponent
    if mantissa > _MANTISSA_MASK:  # rounded up to one bit more
        mantissa, exponent = mantissa >> 1, exponent + 1
    if exponent > _LARGEST_EXPONENT:
        return _LARGEST_EXPONENT << _MANTISSA_BITS | _MANTISSA_MASK
    return (exponent << _MANTISSA_BITS | mantissa) or _NO_TIME
