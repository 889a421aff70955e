"""The helper process: ``python -m attn_tune.tuner.lowering FD PARENT``. Lowers configs for a GPU that it leaves alone.

What it leaves behind is Triton's cache on disk: a worker that compiles the same launch then finds it there.
"""

import contextlib
import functools
import os
import sys
from typing import Any

from attn_tune.kernels.registry import get_op
from attn_tune.kernels.spec import Problem, load
from attn_tune.tuner.child import attach
from attn_tune.tuner.compile import part_function
from attn_tune.tuner.faults import short
from attn_tune.tuner.protocol import ConfigRef

# The process that holds the device comes first.
_NICENESS = 10


def lower_ahead(ref: ConfigRef, capability: int) -> None:
    """Lowers ``ref`` for the compute capability, on shapes alone; the launches are those of the real run.

    Raises:
      Exception: whatever the kernel or its compiler raises.
    """
    import jax

    from attn_tune.kernels._common.triton_target import compile_target

    op = get_op(ref.signature.op)
    problem = op.from_signature(ref.signature)
    function = jax.jit(part_function(ref, problem))
    inputs = _abstract_inputs(op.inputs, problem, ref.direction)
    with compile_target(capability):
        function.trace(inputs).lower(lowering_platforms=("cuda",))


@functools.lru_cache(maxsize=4)
def _abstract_inputs(path: str, problem: Problem, direction: str) -> Any:
    """Shapes and dtypes of the inputs. Kept, for those of a backward trace the reference."""
    import jax

    return jax.eval_shape(lambda: load(path)(problem, direction, 0))


def main(fd: int, parent: int) -> None:
    """Answers each ``(ref, capability)`` with the empty text, or with what went wrong."""
    connection = attach(fd, parent)
    os.nice(_NICENESS)
    with contextlib.suppress(EOFError):
        while True:
            connection.send(_answer(*connection.recv()))


def _answer(ref: ConfigRef, capability: int) -> str:
    try:
        lower_ahead(ref, capability)
    except Exception as error:  # The worker will meet it too, and judge it.
        return f"{type(error).__name__}: {short(str(error))}"
    return ""


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
