"""A cache of schedules that all processes of one pool share: a launch is compiled once for all its lengths."""

import contextlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class LaunchCache:
    """Plain data by key, one file each in a folder. Any number of processes may read and write."""

    def __init__(self, folder: str | Path):
        self._folder = Path(folder)

    def get(self, key: str) -> Mapping[str, Any] | None:
        """The data under ``key``; None if there is none, or its file cannot be read."""
        try:
            return json.loads(self._path(key).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None

    def put(self, key: str, value: Mapping[str, Any]) -> None:
        """Write the data whole or not at all. A folder that is full, or gone, only costs time."""
        with contextlib.suppress(OSError):
            handle, name = tempfile.mkstemp(dir=self._folder)
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(value, file)
            os.replace(name, self._path(key))

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}.json"
