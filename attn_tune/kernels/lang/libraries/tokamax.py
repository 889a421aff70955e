"""The versions of tokamax that its adapters are written for."""

import functools
import importlib.metadata

LIBRARY = "tokamax"
EXTRA = "tokamax"
# Its op classes are no promised interface: what an earlier or later series calls differently is not guessed.
_LEAST, _BELOW = (0, 0, 17), (0, 1)


@functools.cache
def wrong_version() -> str | None:
    """The reason that the installed tokamax cannot be used, with the versions that can; None if it can."""
    remedy = f"pip install 'attn-tune[{EXTRA}]'"
    try:
        version = importlib.metadata.version(LIBRARY)
    except importlib.metadata.PackageNotFoundError:
        return f"tokamax is not installed; {remedy}"
    reason = unknown_version(version)
    return f"{reason}; {remedy}" if reason else None


def unknown_version(version: str) -> str | None:
    """The reason that a version of tokamax cannot be used, be it of the library or of a table; None if it can."""
    parts = tuple(int(part) for part in version.split(".")[:3] if part.isdigit())
    known = _LEAST <= parts < _BELOW
    return None if known else f"tokamax {version} is not known, 0.0.17 and later of 0.0 are"
