"""The versions of tokamax that its adapters are written for."""

from attn_tune.kernels.lang.libraries import versions

LIBRARY = "tokamax"
EXTRA = "tokamax"
# Its op classes are no promised interface: what an earlier or later series calls differently is not guessed.
_LEAST, _BELOW = (0, 0, 17), (0, 1)


def wrong_version() -> str | None:
    """The reason that the installed tokamax cannot be used, with the versions that can; None if it can."""
    return versions.wrong_version(LIBRARY, _LEAST, _BELOW, EXTRA)


def unknown_version(version: str) -> str | None:
    """The reason that a version of tokamax cannot be used, be it of the library or of a table; None if it can."""
    return versions.unknown_version(LIBRARY, version, _LEAST, _BELOW)
