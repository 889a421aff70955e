"""Hands jaxlib's Triton launcher the machine code that Triton made, so that it does not assemble the PTX again.

The launcher's message is ``TritonAnyKernelCall`` of jaxlib's ``gpu/triton.proto``. Its kernel may hold a module image
(``kernel_call.kernel.module_image``, JAX 0.11.1 and later), for which jaxlib's Python classes have no argument. Two
serialised protocol buffers of one type, one after the other, parse as their merge, so the image is appended; a jaxlib
that does not know the field skips it and assembles the PTX as before.
"""

# Field numbers, from the outside in.
_KERNEL_CALL, _KERNEL, _MODULE_IMAGE = 1, 1, 11
_OBJECT_FILE, _KERNEL_NAME, _SHARED_MEM_BYTES = 1, 2, 3
_VARINT, _LENGTH_DELIMITED = 0, 2


def with_image(message: bytes, kernel_name: str, shared_bytes: int, cubin: bytes) -> bytes:
    """``message`` with ``cubin`` as its kernel's module image."""
    image = _text(_OBJECT_FILE, cubin) + _text(_KERNEL_NAME, kernel_name.encode())
    image += _number(_SHARED_MEM_BYTES, shared_bytes)
    return message + _text(_KERNEL_CALL, _text(_KERNEL, _text(_MODULE_IMAGE, image)))


def _text(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | _LENGTH_DELIMITED) + _varint(len(value)) + value


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3 | _VARINT) + _varint(value)


def _varint(value: int) -> bytes:
    """Seven bits a byte, the lowest first; the top bit says that more follow."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
