"""The helper processes: ``python -m attn_tune.tuner.work.lowering_helper PARENT FD...``. They lower configs for GPUs.

One process imports everything once and becomes as many as there are sockets: a compiler takes seconds to import, and
sixteen processes that all do so take the whole machine.
"""

import contextlib
import functools
import os
import sys
from typing import Any

from attn_tune.tuner.protocol import ConfigRef, Lowered, Outcome, Phase
from attn_tune.tuner.work.child_process import attach, settle

# The process that holds the device comes first.
_NICENESS = 10
# Many shapes come by in one sweep: the main ones, and feature problems for each.
_KEPT = 16


def lower_ahead(ref: ConfigRef, capability: int) -> Lowered | Outcome | str:
    """``ref`` lowered for the compute capability, on shapes alone; or what became of it.

    An outcome is the config's own: its compiler refuses it, and would anywhere. A text says what went wrong here. The
    process ends where a config changed it for good.
    """
    from attn_tune.kernels.lang.triton.limits import CompileError, OutOfResources
    from attn_tune.ops.registry import get_op
    from attn_tune.schema.errors import short
    from attn_tune.tuner.work.compile import lower_config
    from attn_tune.tuner.work.faults import outcome_of
    from attn_tune.tuner.work.side_effects import ChangedConfigError

    op = get_op(ref.signature.op)
    try:
        inputs = abstract_inputs(op.inputs, ref.runs_on, ref.direction)
        return lower_config(ref, inputs, capability)
    except Exception as error:
        if isinstance(error, CompileError | OutOfResources):
            return outcome_of(error, Phase.COMPILE)
        if isinstance(error, ChangedConfigError) and error.stays:
            # The next config must not be traced under it; the worker says what this one did.
            raise SystemExit(1) from error
        return f"{type(error).__name__}: {short(str(error))}"


@functools.lru_cache(maxsize=_KEPT)
def abstract_inputs(path: str, problem: Any, direction: str) -> Any:
    """Shapes and dtypes of the inputs. Kept, for those of a backward trace the reference."""
    import jax

    from attn_tune.ops.contract import load

    return jax.eval_shape(lambda: load(path)(problem, direction, 0))


def main(parent: int, fds: list[int]) -> None:
    """Become one helper a socket, and wait for them all."""
    settle(parent)
    _import_compilers()
    me = os.getpid()
    for fd in fds:
        if os.fork() == 0:
            for other in fds:
                if other != fd:
                    os.close(other)
            _serve(fd, me)
            return
    for fd in fds:
        os.close(fd)
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()


def _import_compilers() -> None:
    """Import what every helper needs; nothing here may start a thread or touch a backend, for neither survives a fork.

    Kernels of libraries are imported by the helper that is asked for one: they may not be installed.
    """
    import triton.compiler  # noqa: F401

    import attn_tune.tuner.work.compile  # noqa: F401
    from attn_tune.kernels.registry import kernels
    from attn_tune.ops.contract import load
    from attn_tune.ops.registry import get_op

    for spec in kernels().values():
        if spec.backend == "triton" and set(spec.requires) <= {"triton"}:
            load(get_op(spec.op).inputs)
            for search in spec.searches.values():
                load(search.call)


def _serve(fd: int, parent: int) -> None:
    """Send its process id, then answer each ``(ref, capability)``."""
    connection = attach(fd, parent)
    os.nice(_NICENESS)
    connection.send(os.getpid())
    with contextlib.suppress(EOFError):
        while True:
            connection.send(lower_ahead(*connection.recv()))


if __name__ == "__main__":
    main(int(sys.argv[1]), [int(fd) for fd in sys.argv[2:]])
