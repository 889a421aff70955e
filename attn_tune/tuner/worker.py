"""The worker process: ``python -m attn_tune.tuner.worker FD PARENT``. Answers requests on a socket until it closes.

It may be killed at any instant, by its parent or by a kernel; it holds nothing that is not also in the parent.
"""

import contextlib
import sys

from attn_tune.tuner.child import attach
from attn_tune.tuner.faults import short
from attn_tune.tuner.protocol import Ready, Refusal, Reply, Request


def main(fd: int, parent: int) -> None:
    """Serves the socket ``fd`` of the process ``parent``."""
    connection = attach(fd, parent)

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


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
