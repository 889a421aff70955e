"""Programs whose kernels NVIDIA's CuTe DSL compiles: what lowering, exporting and loading them takes.

The machine code is an attribute of a custom call, whose target belongs to a library of the DSL.
"""

import contextlib
import logging
import re
from collections.abc import Iterator, Sequence
from typing import Any

from attn_tune.kernels.lang.triton.limits import CompileError

BACKEND = "cute"
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
# The lines of its messages that say something of the kernel.
_HEADS = ("error[", "error:")


def register() -> None:
    """Make the target of the custom call known to this process."""
    from cutlass.jax import register_ffi

    register_ffi()


def export_checks() -> Sequence[Any]:
    """The checks of ``jax.export`` that would refuse a program with such a call."""
    from cutlass.jax import get_export_disabled_safety_checks

    return get_export_disabled_safety_checks()


@contextlib.contextmanager
def plain_errors(backend: str) -> Iterator[None]:
    """Turn what the DSL, and the assertions of kernels written in it, raise into a ``CompileError`` of a line.

    Raises:
      CompileError: the kernel cannot be compiled with its config; it could nowhere.
    """
    if backend != BACKEND:
        yield
        return
    from cutlass._mlir.ir import MLIRError
    from cutlass.base_dsl.common import DSLBaseError

    log = logging.getLogger("cutlass.jax.compile")
    disabled, log.disabled = log.disabled, True
    try:
        yield
    except (DSLBaseError, MLIRError, AssertionError) as error:
        raise CompileError(in_a_line(str(error)) or _assertion(error)) from error
    finally:
        log.disabled = disabled


def in_a_line(text: str) -> str:
    """The errors that a message of the DSL names, without colours and advice; the first line where none is marked."""
    lines = [line.strip() for line in _COLOURS.sub("", text).splitlines() if line.strip()]
    marked = [line.partition(":")[2].strip() for line in lines if line.startswith(_HEADS)]
    return "; ".join(dict.fromkeys(marked)) or next(iter(lines), "")


def _assertion(error: BaseException) -> str:
    """The place of an assertion without words."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return "an assertion of the kernel fails"
    return f"an assertion of the kernel fails in {trace.tb_frame.f_code.co_name}, line {trace.tb_lineno}"
