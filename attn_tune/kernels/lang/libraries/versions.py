"""The versions of libraries that adapters are written for, where their interfaces are no promise."""

import functools
import importlib.metadata

type Version = tuple[int, ...]


@functools.cache
def wrong_version(library: str, least: Version, below: Version, extra: str) -> str | None:
    """The reason that the installed ``library`` cannot be used, with what installs one that can; None if it can."""
    remedy = f"pip install 'attn-tune[{extra}]'"
    try:
        version = importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return f"{library} is not installed; {remedy}"
    reason = unknown_version(library, version, least, below)
    return f"{reason}; {remedy}" if reason else None


def unknown_version(library: str, version: str, least: Version, below: Version) -> str | None:
    """The reason that a version is not one from ``least`` up to, and without, ``below``; None if it is."""
    parts = tuple(int(part) for part in version.split(".")[: len(least)] if part.isdigit())
    if least <= parts < below:
        return None
    first, end = (".".join(map(str, number)) for number in (least, below))
    return f"{library} {version} is not known, {first} and later below {end} are"
