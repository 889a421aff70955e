"""Names what went wrong: from an exception to a status and one readable reason."""

import errno
import os
import shutil
import traceback

from attn_tune.schema.errors import StorageError, UnsupportedError, UsageError, short
from attn_tune.schema.trial import Status
from attn_tune.tuner.protocol import Outcome, Phase
from attn_tune.tuner.work.side_effects import ChangedConfigError

# Compilers and allocators say it in words; the types differ from version to version. These depend on what else is held.
_MEMORY_WORDS = (
    "resource_exhausted",
    "resource exhausted",
    "out of memory",
    "memoryerror",
    "bad_alloc",
    "cannot allocate memory",
)
# These are the program's own.
_LIMIT_WORDS = (
    "out of resource",
    "outofresources",
    "uses too much shared data",
    "exceeds the limit of shared memory",
    "shared memory limit",
    "shared memory size limit",
    "too many resources requested for launch",
    "exceeded scoped vmem limit",
    "ran out of memory in memory space",
)
# After these a CUDA context answers every call with the same error (CUDA driver API, "CUresult").
_STICKY_WORDS = (
    "illegal_address",
    "illegal address",
    "illegal memory access",
    "misaligned_address",
    "misaligned address",
    "illegal_instruction",
    "illegal instruction",
    "invalid_address_space",
    "invalid_pc",
    "hardware_stack_error",
    "launch_failed",
    "launch failure",
    "launch_timeout",
    "device-side assert",
    "cuda_error_assert",
    "uncorrectable ecc",
)
_FULL_DISK_WORDS = ("no space left on device", "disk quota exceeded")
_FULL_DISK_CODES = (errno.ENOSPC, errno.EDQUOT)
_LITTLE_BYTES = 1 << 20


class DiskFullError(StorageError):
    """A worker cannot write its caches or temporary files: no config's fault, and every one after it would fail."""


def outcome_of(error: BaseException, phase: Phase) -> Outcome:
    """The outcome of a config that raised ``error`` in ``phase``.

    Running out of memory is ``sticky`` too: what an earlier config left behind may fill it, and a fresh process tells.
    So is a change of JAX's configuration that stays.

    Raises:
      DiskFullError: the disk is full.
    """
    if (disk_full := full_disk(error)) is not None:
        raise disk_full from error
    text = _text(error)
    if isinstance(error, ImportError) and type(error) not in (ImportError, ModuleNotFoundError):
        text = f"ImportError: {text}"
    low = text.lower()
    sticky = any(word in low for word in _STICKY_WORDS)
    if sticky:
        status = Status.CRASHED
    elif any(word in low for word in _LIMIT_WORDS):
        status = Status.OUT_OF_RESOURCES
    elif says_out_of_memory(low):
        status, sticky = Status.OUT_OF_RESOURCES, True
    elif isinstance(error, UnsupportedError | UsageError):
        status = Status.UNSUPPORTED
        sticky = isinstance(error, ChangedConfigError) and error.stays
    elif phase is Phase.COMPILE:
        status = Status.COMPILE_ERROR
    else:
        status = Status.RUNTIME_ERROR
    return Outcome(status=status, reason=f"{phase}: {short(text)}{_place(error)}", sticky=sticky)


def says_out_of_memory(text: str) -> bool:
    """Whether an error, or the last words of a process, name memory that was not to be had."""
    low = text.lower()
    return any(word in low for word in _MEMORY_WORDS)


def full_disk(error: BaseException) -> DiskFullError | None:
    """The error to raise, with the place named, if ``error`` or what caused it is a full disk; else None."""
    chain = _chain(error)
    for known in chain:
        if isinstance(known, DiskFullError):
            return known
    codes = [e.errno for e in chain if isinstance(e, OSError)]
    text = _text(error)
    if not any(code in _FULL_DISK_CODES for code in codes) and not any(
        word in text.lower() for word in _FULL_DISK_WORDS
    ):
        return None
    named = [str(e.filename) for e in chain if isinstance(e, OSError) and e.filename]
    where = ", ".join(named or _full_folders()) or "a folder that the kernel or its compiler uses"
    return DiskFullError(
        f"the disk is full: a worker cannot write to {where}; free some space, or set TMPDIR and TRITON_CACHE_DIR "
        f"elsewhere, and run the same command again: what was measured is stored ({short(text, 300)})"
    )


def _full_folders() -> list[str]:
    """Those folders of caches and temporary files whose disks have next to nothing left."""
    home = os.path.expanduser("~/.triton/cache")
    folders = [
        os.environ.get("TRITON_CACHE_DIR") or home,
        os.environ.get("JAX_COMPILATION_CACHE_DIR", ""),
        os.environ.get("TMPDIR") or "/tmp",
    ]
    found = []
    for folder in dict.fromkeys(folders):
        if os.path.isdir(folder) and shutil.disk_usage(folder).free < _LITTLE_BYTES:
            found.append(folder)
    return found


def _text(error: BaseException) -> str:
    return "\n".join(f"{type(e).__name__}: {e}" for e in _chain(error))


def _chain(error: BaseException) -> list[BaseException]:
    chain, seen = [], set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        chain.append(current)
        seen.add(id(current))
        current = current.__cause__
    return chain


def _place(error: BaseException) -> str:
    """The module and line where an error was raised: a kernel author's first question."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if "/jax/" not in f.filename and "/attn_tune/tuner/" not in f.filename]
    if not own:
        return ""
    frame = own[-1]
    return f" (in {frame.name}, {frame.filename.rpartition('/')[2]}:{frame.lineno})"
