"""The first steps of every process that the tuner starts: it must not outlive its parent, nor end at Ctrl-C."""

import ctypes
import faulthandler
import os
import signal
import sys
from multiprocessing.connection import Connection

_PR_SET_PDEATHSIG = 1


def attach(fd: int, parent: int) -> Connection:
    """Settles this process, and returns its connection over the socket ``fd``."""
    settle(parent)
    return Connection(fd)


def settle(parent: int) -> None:
    """Ties this process to the process ``parent``. Its stacks are dumped on SIGUSR1."""
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
