"""The worker process of a command that runs kernels."""

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attn_tune.tuner.executor import Executor


@contextlib.contextmanager
def isolated_executor() -> "Iterator[Executor]":
    """One worker process on this machine's default device; ended on the way out, whatever it hangs in."""
    from attn_tune.tuner.worker import IsolatedExecutor

    executor = IsolatedExecutor()
    try:
        yield executor
    finally:
        executor.close()
