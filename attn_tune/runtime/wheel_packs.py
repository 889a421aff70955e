"""Packs that were installed as wheels: found by an entry point, read as data; nothing of them is ever imported."""

import logging
import re
from pathlib import Path

GROUP = "attn_tune.packs"

_FOLDER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*")
_log = logging.getLogger("attn_tune")


def wheel_packs() -> tuple[str, ...]:
    """The paths of the packs that installed distributions announce, by name."""
    import importlib.metadata  # Slow to import, and of use only when packs are looked for.

    found: dict[tuple[str, str], str] = {}
    for entry in importlib.metadata.entry_points(group=GROUP):
        if entry.dist is None or not _FOLDER.fullmatch(entry.value):
            _log.warning("ignored: the entry point %r of %s names no folder", entry.name, GROUP)
            continue
        folder = Path(str(entry.dist.locate_file(entry.value.replace(".", "/"))))
        found.setdefault((entry.name, entry.value), str(folder))
    return tuple(path for _, path in sorted(found.items()))
