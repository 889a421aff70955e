"""Messages of a child process, of which only a part may ever come."""

import os
import pickle
import struct
from multiprocessing.connection import Connection
from typing import Any

# What a ``Connection`` sends before each message: its length. CPython keeps this for compatibility.
_LENGTH = struct.Struct("!i")
_CHUNK_BYTES = 1 << 20


class Inbox:
    """Receives over ``connection`` what another ``Connection`` sends, and never waits for the rest of a message.

    ``Connection.recv`` does: a process that is stopped while it writes would hold up its reader for ever.
    """

    def __init__(self, connection: Connection):
        self._connection = connection
        self._bytes = bytearray()

    def poll(self, wait_s: float) -> bool:
        """Whether a whole message is there, after waiting for at most ``wait_s`` if nothing comes.

        Raises:
          EOFError, OSError: the other end is closed.
          ValueError: what came is no message.
        """
        while (end := self._end()) is None or len(self._bytes) < end:
            if not self._connection.poll(wait_s):
                return False
            chunk = os.read(self._connection.fileno(), _CHUNK_BYTES)
            if not chunk:
                raise EOFError
            self._bytes += chunk
            wait_s = 0.0
        return True

    def take(self) -> Any:
        """The message that ``poll`` found. Raises what ``pickle.loads`` raises for bytes that are no message."""
        end = self._end()
        message = bytes(self._bytes[_LENGTH.size : end])
        del self._bytes[:end]
        return pickle.loads(message)

    def _end(self) -> int | None:
        """The place where the first message ends among the bytes that came; None while its length is not known."""
        if len(self._bytes) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._bytes)
        if length < 0:
            raise ValueError(f"a message of {length} bytes")
        return _LENGTH.size + length
