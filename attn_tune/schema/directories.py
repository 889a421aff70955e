"""Directories of a user's data, configuration and caches (XDG base directories)."""

import os
from collections.abc import Mapping


def data_directory(environ: Mapping[str, str]) -> str:
    """``attn-tune`` under ``XDG_DATA_HOME``, which is ``~/.local/share`` unless set; ``""`` without a home."""
    return _own(environ, "XDG_DATA_HOME", ".local", "share")


def config_directory(environ: Mapping[str, str]) -> str:
    """``attn-tune`` under ``XDG_CONFIG_HOME``, which is ``~/.config`` unless set; ``""`` without a home."""
    return _own(environ, "XDG_CONFIG_HOME", ".config")


def cache_directory(environ: Mapping[str, str]) -> str:
    """``attn-tune`` under ``XDG_CACHE_HOME``, which is ``~/.cache`` unless set; ``""`` without a home."""
    return _own(environ, "XDG_CACHE_HOME", ".cache")


def _own(environ: Mapping[str, str], variable: str, *default: str) -> str:
    home = environ.get("HOME", "")
    base = environ.get(variable) or (home and os.path.join(home, *default))
    return os.path.join(base, "attn-tune") if base else ""
