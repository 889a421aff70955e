"""Programs that the worker compiles in the background, while the device is busy with another config."""

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from attn_tune.tuner.protocol import ConfigRef, Load, Lowered
from attn_tune.tuner.work.compile import Executable, compile_config, load_config

# XLA's part takes some 20 ms a config, half of it without the interpreter lock.
_THREADS = 2


class LoadedConfigs:
    """Executables by config. Nothing here touches the device: that is for the one thread that measures."""

    def __init__(self):
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="load")
        self._lock = threading.Lock()
        self._coming: dict[tuple[Any, ...], Future[Executable]] = {}

    def load(self, message: Load) -> None:
        """Begin to compile. May be called from any thread."""
        with self._lock:
            self._coming[message.ref.key] = self._pool.submit(load_config, message.lowered)

    def take(self, ref: ConfigRef, lowered: Lowered | None, inputs: Any) -> Executable:
        """The executable of ``ref``, compiled here and now if it was not before. It is forgotten here."""
        with self._lock:
            future = self._coming.pop(ref.key, None)
        if future is not None:
            return future.result()
        return load_config(lowered) if lowered else compile_config(ref, inputs)
