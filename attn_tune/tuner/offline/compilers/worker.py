"""A process that compiles for a target and holds no device: ``python -m <this module> FD PARENT``."""

import contextlib
import os
import sys

from attn_tune.schema.trial import Resources, Status
from attn_tune.tuner.offline.compilers.gpu import compile_for_gpu
from attn_tune.tuner.offline.compilers.launch_cache import LaunchCache
from attn_tune.tuner.offline.compilers.protocol import Compiled, CompileFor
from attn_tune.tuner.offline.compilers.shortage import shortage_of
from attn_tune.tuner.offline.compilers.tpu import compile_for_tpu
from attn_tune.tuner.offline.target import find_target
from attn_tune.tuner.protocol import Phase, Ready
from attn_tune.tuner.work.child_process import answered, attach
from attn_tune.tuner.work.faults import outcome_of

_NICENESS = 5


def compile_for(request: CompileFor) -> Compiled:
    """Compile a config; an error of any type is its result."""
    target = find_target(request.target)
    try:
        if target.topology:
            return compile_for_tpu(
                request.ref,
                target.topology,
                request.dump_folder,
                cache=LaunchCache(request.cache_folder),
                whole=request.whole,
            )
        return compile_for_gpu(request.ref, target.device.compute_capability or 0)
    except Exception as error:
        outcome = outcome_of(error, Phase.COMPILE)
        lack = shortage_of(error) if outcome.status is Status.OUT_OF_RESOURCES else None
        return Compiled(
            status=outcome.status,
            reason=outcome.reason,
            shortage=lack,
            resources=Resources(),
        )


def main(fd: int, parent: int) -> None:
    """Serve the socket ``fd`` of the process ``parent``."""
    connection = attach(fd, parent)
    os.nice(_NICENESS)
    import jax  # noqa: F401

    connection.send(Ready())
    with contextlib.suppress(EOFError, OSError):
        while True:
            connection.send(answered(compile_for, connection.recv()))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
