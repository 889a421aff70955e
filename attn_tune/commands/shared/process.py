"""The process of one command: its streams, its warnings, and the variables that libraries read as they are loaded."""

import errno
import glob
import io
import os
import sys
import warnings
from pathlib import Path
from typing import Any

from attn_tune.schema.errors import StorageError

# Google's PCI vendor id, under which JAX looks for TPU chips.
_TPU_VENDOR = "0x1ae0"
# Without them libtpu asks for the machine's place in a slice, and writes to stderr that there is none.
_LONE_HOST = {"TPU_ACCELERATOR_TYPE": "v5litepod-1", "TPU_WORKER_HOSTNAMES": "localhost"}


def settle() -> None:
    """Prepares the process for one command. Called before JAX is imported."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # it was closed; what opens a file next would get its number
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
    if sys.stdout is sys.__stdout__ and isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout = _stdout(sys.stdout)
    if sys.stderr is sys.__stderr__ and isinstance(sys.stderr, io.TextIOWrapper):
        number, errors = sys.stderr.fileno(), sys.stderr.errors or "backslashreplace"
        sys.stderr = _text(_ErrorOutput(number, "w", closefd=False), sys.stderr, errors)
    warnings.formatwarning = lambda message, *_, **__: f"warning: {message}\n"
    if not _may_have_tpu():
        for name, value in _LONE_HOST.items():
            os.environ.setdefault(name, value)


class _Output(io.FileIO):
    """The file under stdout. Its first error is a ``StorageError``; what is written later is dropped, so that the
    interpreter does not fail once more as it ends. A reader of a pipe that stops reading is no error.
    """

    _is_lost = False

    def write(self, data: Any, /) -> int | None:
        if not self._is_lost:
            try:
                return super().write(data)
            except OSError as error:
                self._is_lost = True
                if error.errno != errno.EPIPE:
                    reason = error.strerror or error
                    raise StorageError(f"stdout cannot be written: {reason}") from None
        return memoryview(data).nbytes


class _ErrorOutput(_Output):
    """The file under stderr. That it cannot be written is no error: there is nowhere to say it, and the command ends
    with its own exit code.
    """

    def write(self, data: Any, /) -> int | None:
        try:
            return super().write(data)
        except StorageError:
            return memoryview(data).nbytes


def _stdout(given: io.TextIOWrapper) -> io.TextIOWrapper:
    """A stream in the place of ``given`` that fails as ``_Output`` does, and never for a character that its encoding
    does not have.
    """
    number = given.fileno()
    if not given.isatty():
        # What native code and child processes print is no answer: it goes to stderr.
        number = os.dup(number)
        os.dup2(sys.stderr.fileno(), given.fileno())
    return _text(_Output(number, "w", closefd=False), given, "replace")


def _text(file: io.FileIO, given: io.TextIOWrapper, errors: str) -> io.TextIOWrapper:
    """A stream to ``file`` with the encoding and the buffering of ``given``."""
    return io.TextIOWrapper(
        io.BufferedWriter(file),
        encoding=given.encoding,
        errors=errors,
        line_buffering=given.line_buffering or given.write_through,
    )


def _may_have_tpu() -> bool:
    """True where a TPU may be: a PCI device by its vendor, or the nodes of one that was passed into a container."""
    if glob.glob("/dev/accel*") or glob.glob("/dev/vfio/*"):
        return True
    for vendor in glob.glob("/sys/bus/pci/devices/*/vendor"):
        try:
            if Path(vendor).read_text().strip() == _TPU_VENDOR:
                return True
        except OSError:
            return True
    return False
