"""Packs as a command line names them: a path, or the name of a pack that calls find here."""

from pathlib import Path


def pack_path(text: str) -> Path:
    """The parser of arguments: as ``names.pack_path``, which is imported once it is needed.

    Raises:
      UsageError: ``text`` is empty.
      StorageError: ``text`` is a bare name, and nothing is called so.
    """
    from attn_tune.runtime.active import names

    return names.pack_path(text)
