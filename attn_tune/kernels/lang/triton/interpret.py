"""Runs a Triton kernel on numpy arrays with Triton's interpreter, so that kernels can be tested without a GPU.

The arrays are copied into fenced buffers: poison before and behind each one, poison in every output. An element that
the kernel does not write stays poison, a load out of bounds reads poison, and a store out of bounds is an error.
"""

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from attn_tune.kernels.lang.triton.launch import Launch
from attn_tune.kernels.lang.triton.narrow_floats import right_narrow_floats
from attn_tune.schema.errors import AttnTuneError

DECIDES_NO_CODE = "runs in place of a GPU, never on one"

FENCE_BYTES = 4096

# The interpreter patches triton.language and keeps the grid position in globals.
_ONE_AT_A_TIME = threading.Lock()


class OutOfBoundsStore(AttnTuneError):
    """A kernel wrote outside its outputs."""


def is_interpreted(kernel: Any) -> bool:
    """Whether ``triton.jit`` made ``kernel`` while ``TRITON_INTERPRET=1`` was set."""
    from triton.runtime.interpreter import InterpretedFunction

    return isinstance(kernel, InterpretedFunction)


def interpret(launch: Launch, operands: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    """The outputs of one launch. Those that are neither zeroed nor an operand's buffer start as poison.

    Args:
      operands: the arrays of the operands that are present, in order. They are left as they are.

    Raises:
      OutOfBoundsStore: the kernel wrote to an operand that no output is made in place of, or outside its outputs.
    """
    inputs = [FencedArray.holding(np.asarray(operand)) for operand in operands]
    outputs = [FencedArray.poisoned(out.shape, numpy_dtype(out.dtype)) for out in launch.out_types]
    for output, zero in zip(outputs, launch.zeroed, strict=True):
        if zero:
            output.values[...] = 0
    for operand, output in launch.aliases:
        outputs[output] = inputs[operand]
    arrays = iter((*inputs, *outputs))
    here = (*launch.present, *(True for _ in outputs))
    arguments = [next(arrays) if present else None for present in here]
    with _ONE_AT_A_TIME, right_narrow_floats(), np.errstate(all="ignore"):
        launch.kernel.run(*arguments, grid=launch.grid, warmup=False, **dict(launch.constexprs))
    _check_stores(launch, inputs, operands, outputs)
    return tuple(output.values.copy() for output in outputs)


class FencedArray:
    """A numpy array between two fences of poison, with the few methods of a tensor that the interpreter calls.

    The interpreter asks for a copy of each tensor's storage on the host and writes it back at the end. This is the
    storage already, so every copy is the object itself.
    """

    def __init__(self, shape: Sequence[int], dtype: np.dtype):
        self.dtype = dtype
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        # The interpreter's descriptors want bases aligned to 16 bytes, like XLA's buffers.
        buffer = np.empty(size + 2 * FENCE_BYTES + 16, np.uint8)
        start = FENCE_BYTES + -(buffer.ctypes.data + FENCE_BYTES) % 16
        whole = buffer[start - FENCE_BYTES : start + size + FENCE_BYTES]
        whole.view(dtype)[:] = poison(dtype)
        self.fences = (whole[:FENCE_BYTES], whole[FENCE_BYTES + size :])
        self._untouched = self._fence_bytes()
        self.values = whole[FENCE_BYTES : FENCE_BYTES + size].view(dtype).reshape(shape)

    @classmethod
    def holding(cls, values: np.ndarray) -> "FencedArray":
        """A copy of ``values``."""
        array = cls(values.shape, values.dtype)
        array.values[...] = values
        return array

    @classmethod
    def poisoned(cls, shape: Sequence[int], dtype: np.dtype) -> "FencedArray":
        """All poison."""
        return cls(shape, dtype)

    def is_intact(self) -> bool:
        """Whether nothing was written to the fences."""
        return self._fence_bytes() == self._untouched

    def _fence_bytes(self) -> bytes:
        return self.fences[0].tobytes() + self.fences[1].tobytes()

    def data_ptr(self) -> int:
        return self.values.ctypes.data

    def storage_offset(self) -> int:
        return 0

    def size(self) -> tuple[int, ...]:
        return self.values.shape

    def stride(self) -> tuple[int, ...]:
        return tuple(step // self.dtype.itemsize for step in self.values.strides)

    def untyped_storage(self) -> "FencedArray":
        return self

    def cpu(self) -> "FencedArray":
        return self

    def new_empty(self, *_: Any, **__: Any) -> "FencedArray":
        return self

    def set_(self, *_: Any) -> "FencedArray":
        return self

    def copy_(self, _: Any) -> "FencedArray":
        return self


def poison(dtype: np.dtype) -> Any:
    """A value that no right kernel leaves behind: NaN, or the largest integer."""
    if dtype == np.bool_:
        return True
    if np.issubdtype(dtype, np.integer):
        return np.iinfo(dtype).max
    return np.array(np.nan, dtype)


def numpy_dtype(name: str) -> np.dtype:
    """The numpy dtype called ``name``, those of ml_dtypes (``bfloat16``, ``float8_e4m3fn``) among them."""
    import ml_dtypes

    return np.dtype(getattr(ml_dtypes, name, name))


def _check_stores(
    launch: Launch,
    inputs: Sequence[FencedArray],
    given: Sequence[np.ndarray],
    outputs: Sequence[FencedArray],
) -> None:
    for name, array in zip(launch.pointer_names, (*inputs, *outputs), strict=True):
        if not array.is_intact():
            raise OutOfBoundsStore(f"kernel {launch.name!r} wrote outside the bounds of {name!r}")
    for name, array, before in zip(launch.pointer_names, inputs, given, strict=False):
        is_updated = any(array is output for output in outputs)
        if not is_updated and array.values.tobytes() != np.asarray(before).tobytes():
            raise OutOfBoundsStore(f"kernel {launch.name!r} wrote to its operand {name!r}; return an output instead")
