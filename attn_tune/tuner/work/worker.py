"""The worker process: ``python -m attn_tune.tuner.work.worker FD PARENT``. Answers requests until its socket closes.

It may be killed at any instant, by its parent or by a kernel; it holds nothing that is not also in the parent.
"""

import queue
import sys
import threading
from multiprocessing.connection import Connection

from attn_tune.tuner.protocol import Load, Ready, Request
from attn_tune.tuner.work.child_process import answered, attach


def main(fd: int, parent: int) -> None:
    """Serve the socket ``fd`` of the process ``parent``."""
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
        connection.send(answered(session.answer, request))


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


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
