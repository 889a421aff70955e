"""The progress of a sweep in its lab database, about once a second, for ``attn-tune status`` in another terminal."""

import contextlib
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from attn_tune.schema import AttnTuneError

if TYPE_CHECKING:
    from attn_tune.commands.sweeps.tally import Tally

logger = logging.getLogger(__name__)

BEAT_S = 1.0


@contextlib.contextmanager
def beating(path: Path, run_id: int, tally: "Tally") -> Iterator[None]:
    """Store the progress of ``tally`` as that of the run for a ``with`` block, in a thread of its own.

    A thread of its own because the caller waits for a device, for minutes at times; so it needs a connection of its
    own, too. Nothing is written while a config is timed on this processor. A failure ends it, and is no error: what
    stores trials on the same file says what is wrong.
    """
    over = threading.Event()

    def beat() -> None:
        from attn_tune.db import Database

        try:
            with Database.open(path) as own:
                while not over.wait(BEAT_S):
                    if not tally.is_timing_here:
                        own.heartbeat(run_id, tally.progress())
        except AttnTuneError as error:
            logger.info("the progress of run %d is stored no longer: %s", run_id, error)

    thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
