"""The errors and the warning a user can meet. Each message names the thing, the value and the way out."""

import difflib
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attn_tune.schema.logs import other_code


class AttnTuneError(Exception):
    """Base class of every error that attn-tune raises on purpose. ``exit_code`` is the command's status."""

    exit_code = 1


class UsageError(AttnTuneError, ValueError):
    """The caller asked for something malformed: a bad name, an impossible shape, a broken TOML file."""

    exit_code = 2


class UnsupportedError(AttnTuneError, NotImplementedError):
    """A kernel cannot do this problem on this device, for the reason given."""

    exit_code = 2


class NoDataError(AttnTuneError, LookupError):
    """Nothing stored answers the question, or the environment to answer it is missing."""

    exit_code = 3


class LockfileError(NoDataError):
    """Only a file of overrides may answer, and it does not, or its answer no longer means what it meant then."""


class DisagreementError(AttnTuneError, RuntimeError):
    """The processes of one job would choose differently: they would compile different programs, and hang."""

    exit_code = 5


class StorageError(AttnTuneError, OSError):
    """A file cannot be opened, locked or written."""

    exit_code = 4


class IntegrityError(AttnTuneError, ValueError):
    """Stored data is not what it claims to be: wrong format, failed checksum, unknown version."""

    exit_code = 5


class GateError(AttnTuneError):
    """Rows that were to be shipped lack the proof that a release needs. Nothing was written.

    ``objections`` are all of them as plain data: kernel, direction, signature, device, reason and doubt.
    """

    objections: Sequence[Mapping[str, str | None]] = ()


class AttnTuneWarning(UserWarning):
    """Something that works and is probably not meant.

    An untuned answer in the miss mode ``warn``, swapped axes, an installed package whose kernels are left out, or a
    database on a network file system.
    """


def warn(message: str) -> None:
    """Warn with ``AttnTuneWarning`` at the line outside this package and JAX that led here."""
    warnings.warn(message, AttnTuneWarning, skip_file_prefixes=other_code())


def short(text: str, limit: int = 2000) -> str:
    """``text`` in about ``limit`` characters that UTF-8 has: the middle of a longer one is left out."""
    text = text.strip().encode(errors="backslashreplace").decode()
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]} ... {text[-half:]}"


def shown(value: Any) -> str:
    """``value`` for a message, in bounded length; of an array dtype, shape and first entry."""
    dtype: Any = getattr(value, "dtype", None)
    shape: Any = getattr(value, "shape", None)
    if dtype is None or shape is None or isinstance(value, type):  # classes of numpy's numbers have both attributes
        return short(" ".join(repr(value).split()), 100)
    try:
        first = f", the first of them {value.reshape(-1)[0]}" if value.size else ""
    except Exception:  # a traced array has no values, and other libraries raise what they like
        first = ""
    return f"an array {dtype}{list(shape)}{first if shape else f' of {short(str(value), 100)}'}"


def unknown_name(kind: str, name: str, known: Iterable[str]) -> UsageError:
    """An error for a name that does not exist, with the near ones.

    Example: ``unknown op 'atention'; did you mean 'attention'?``
    """
    known = sorted(set(known))
    hint = near_names(name, known)
    if not hint:
        hint = "known: " + ", ".join(known) if known else "none is registered"
    return UsageError(f"unknown {kind} {name!r}; {hint}")


def near_names(name: str, known: Iterable[str], most: int = 3) -> str:
    """A question after at most ``most`` known names that begin with ``name``, or else are near it; or ``""``.

    Example: ``did you mean 'bfloat16' or 'float16'?``
    """
    known = list(known)
    longer = sorted((one for one in known if name and one.startswith(name)), key=len)
    near = list(dict.fromkeys([*longer, *difflib.get_close_matches(name, known, n=most, cutoff=0.5)]))[:most]
    return f"did you mean {' or '.join(map(repr, near))}?" if near else ""
