"""The worker process: ``python -m attn_tune.tuner.worker FD``. Answers requests on a socket until it closes.

It may be killed at any instant, by its parent or by a kernel; it holds nothing that is not also in the parent.
"""

import contextlib
import ctypes
import faulthandler
import os
import signal
import sys
from multiprocessing.connection import Connection

from attn_tune.tuner.faults import short
from attn_tune.tuner.protocol import Ready, Refusal, Reply, Request

_PR_SET_PDEATHSIG = 1


def main(fd: int) -> None:
    """Serves the socket ``fd``."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    _die_with_parent()
    connection = Connection(fd)

    import jax

    from attn_tune.tuner.session import Session

    jax.devices()
    session = Session(connection.send)
    connection.send(Ready())
    with contextlib.suppress(EOFError):
        while True:
            connection.send(_answer(session, connection.recv()))


def _answer(session, request: Request) -> Reply:
    from attn_tune.tuner.prepared import PrepareError

    try:
        return session.answer(request)
    except PrepareError as error:
        return Refusal(reason=str(error))
    except Exception as error:  # The worker must answer; the parent says what could not be done.
        return Refusal(reason=f"{type(error).__name__}: {short(str(error))}")


def _die_with_parent() -> None:
    """A hung worker must not outlive its parent and hold the device (Linux; elsewhere the closed socket ends it)."""
    if sys.platform != "linux":
        return
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent or parent == 1:
        os._exit(1)


if __name__ == "__main__":
    main(int(sys.argv[1]))
