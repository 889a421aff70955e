"""Names what went wrong: from an exception to a status and one readable reason."""

import traceback

from attn_tune.schema.errors import UnsupportedError, UsageError
from attn_tune.schema.trial import Status
from attn_tune.tuner.protocol import Outcome, Phase

# Compilers and allocators say it in words; the types differ from version to version.
_RESOURCE_WORDS = (
    "resource_exhausted",
    "resource exhausted",
    "out of memory",
    "out of resource",
    "outofresources",
    "uses too much shared data",
    "exceeds the limit of shared memory",
    "shared memory limit",
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
_MAX_REASON = 2000


def outcome_of(error: BaseException, phase: Phase) -> Outcome:
    """The outcome of a config that raised ``error`` in ``phase``."""
    chain = _chain(error)
    text = "\n".join(f"{type(e).__name__}: {e}" for e in chain)
    low = text.lower()
    sticky = any(word in low for word in _STICKY_WORDS)
    if sticky:
        status = Status.CRASHED
    elif isinstance(error, MemoryError) or any(word in low for word in _RESOURCE_WORDS):
        status = Status.OUT_OF_RESOURCES
    elif isinstance(error, UnsupportedError | UsageError):
        status = Status.UNSUPPORTED
    elif phase is Phase.COMPILE:
        status = Status.COMPILE_ERROR
    else:
        status = Status.RUNTIME_ERROR
    return Outcome(status=status, reason=f"{phase}: {short(text)}{_place(error)}", sticky=sticky)


def short(text: str, limit: int = _MAX_REASON) -> str:
    """``text`` with its middle left out when it is long."""
    text = text.strip()
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]} ... {text[-half:]}"


def _chain(error: BaseException) -> list[BaseException]:
    chain, seen = [], set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        chain.append(current)
        seen.add(id(current))
        current = current.__cause__
    return chain


def _place(error: BaseException) -> str:
    """Where it was raised, by module and line: a kernel author's first question."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if "/jax/" not in f.filename and "/attn_tune/tuner/" not in f.filename]
    if not own:
        return ""
    frame = own[-1]
    return f" (in {frame.name}, {frame.filename.rpartition('/')[2]}:{frame.lineno})"
