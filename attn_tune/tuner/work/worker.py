"""The worker process: ``python -m attn_tune.tuner.work.worker FD PARENT``. Answers requests until its socket closes.

It may be killed at any instant, by its parent or by a kernel; it holds nothing that is not also in the parent.
"""

import queue
import sys
import threading
from multiprocessing.connection import Connection

from attn_tune.schema.errors import short
from attn_tune.tuner.protocol import Load, Ready, Refusal, Reply, Request
from attn_tune.tuner.work.child_process import attach
from attn_tune.tuner.work.faults import full_disk


def main(fd: int, parent: int) -> None:
    """Serves the socket ``fd`` of the process ``parent``."""
    connection = attach(fd, parent)

    import jax

    from attn_tune.tuner.work.session import Session

    jax.devices()
    session = Session(connection.send)
    connection.send(Ready())
    inbox: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
    # What comes next is compiled while the main thread is at work.
    threading.Thread(target=_receive, args=(connection, session, inbox), daemon=True).start()
    while (request := inbox.get()) is not None:
        connection.send(_answer(session, request))


def _receive(connection: Connection, session, inbox: "queue.SimpleQueue[Request | None]") -> None:
    try:
        while True:
            message = connection.recv()
            if isinstance(message, Load):
                session.load(message)
            else:
                inbox.put(message)
    except (EOFError, OSError):
        inbox.put(None)


def _answer(session, request: Request) -> Reply:
    from attn_tune.tuner.work.prepared_cases import PrepareError

    try:
        return session.answer(request)
    except Exception as error:  # The worker must answer; the parent says what could not be done.
        if (disk_full := full_disk(error)) is not None:
            return Refusal(reason=str(disk_full), disk_full=True)
        if isinstance(error, PrepareError):
            return Refusal(reason=str(error))
        return Refusal(reason=f"{type(error).__name__}: {short(str(error))}")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
