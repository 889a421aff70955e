"""Every process that the tuner starts: it does not outlive its parent, nor end at Ctrl-C, and answers each message."""

import ctypes
import faulthandler
import os
import signal
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from attn_tune.schema.errors import AttnTuneError, short
from attn_tune.tuner.protocol import Refusal
from attn_tune.tuner.work.faults import full_disk

_PR_SET_PDEATHSIG = 1


def attach(fd: int, parent: int) -> Connection:
    """Settle this process, and return its connection over the socket ``fd``."""
    settle(parent)
    return Connection(fd)


def answered[A](answer: Callable[[Any], A], request: Any) -> A | Refusal:
    """``answer(request)``; a refusal where it raises, for a process must answer: the parent says what went wrong."""
    try:
        return answer(request)
    except Exception as error:
        if (disk_full := full_disk(error)) is not None:
            return Refusal(reason=str(disk_full), disk_full=True)
        known = isinstance(error, AttnTuneError)
        return Refusal(reason=str(error) if known else f"{type(error).__name__}: {short(str(error))}")


def settle(parent: int) -> None:
    """Tie this process to the process ``parent``. Its stacks are dumped on SIGUSR1."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    _die_with(parent)


def _die_with(parent: int) -> None:
    """A hung process must not outlive its parent and hold the device (Linux; elsewhere the closed socket ends it)."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
