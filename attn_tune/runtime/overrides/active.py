"""Overrides that a job uses: the files of its environment, joined with those of ``with`` blocks and packs."""

import os
import shlex
from collections.abc import Iterable, Mapping
from typing import Any

from attn_tune.packs.override_entries import Asked, Entry
from attn_tune.packs.override_files import OverridesFile, read_overrides
from attn_tune.schema.digest import digest_json
from attn_tune.schema.directories import config_directory
from attn_tune.schema.errors import IntegrityError, StorageError
from attn_tune.schema.logs import log

VARIABLE = "ATTN_TUNE_OVERRIDES"


class Overrides:
    """Files of overrides that are active together, the first to ask first. ``carried`` are those of packs.

    Attributes:
      files: the files, without those of packs.
      only: the files that alone may answer; empty where others may.
      never: the entries that forbid, of all files and packs.
      broken: why some of these could not be read, ``""`` if all could. Nothing stored may run then.
      idle: by op, the entries of files that act on nothing here, with the reasons, once they are asked for.
    """

    def __init__(self, files: Iterable[OverridesFile] = (), carried: Iterable[OverridesFile] = ()):
        self.files = tuple(files)
        self.only = tuple(file for file in self.files if file.only)
        both = (*self.files, *carried)
        self.never = tuple(one for file in both for one in file.entries if one.never)
        self.broken = next((file.broken for file in both if file.broken), "")
        self.idle: dict[str, tuple[tuple[Entry, str], ...]] = {}
        self._uses: dict[tuple[str, ...], list[tuple[int, OverridesFile, Entry]]] = {}
        for number, file in enumerate(self.only or self.files):
            for entry in (one for one in file.entries if not one.never):
                text = entry.signature if isinstance(entry.signature, str) else ""
                key = (entry.op, entry.direction, text)
                self._uses.setdefault(key, []).append((number, file, entry))

    def uses(self, asked: Asked, kernel: str | None) -> list[tuple[OverridesFile, Entry]]:
        """The entries that may answer in the order they are asked, each with its file.

        The order of the files decides; within a file the narrowest condition goes first. ``kernel`` is the one that
        the caller names, None for any.
        """
        found: list[tuple[int, int, bool, str, OverridesFile, Entry]] = []
        for text in (asked.signature, ""):
            for number, file, entry in self._uses.get((asked.op, asked.direction, text), ()):
                named = (entry.frozen.asked,) if entry.frozen else ("", entry.kernel)
                level = entry.level(asked)
                if (kernel or "") in named and level is not None:
                    found.append((number, level, not entry.frozen, entry.line, file, entry))
        return [(file, entry) for *_, file, entry in sorted(found, key=lambda one: one[:4])]

    def forbidding(self, asked: Asked, kernel: str, config: Mapping[str, Any]) -> Entry | None:
        """The first entry that forbids a config of ``kernel``; None if none does."""
        return next((e for e in self.never if e.forbids(asked, kernel, config)), None)

    @property
    def statement(self) -> dict[str, str]:
        """The files as text by name, without their paths. Processes with equal statements choose alike."""
        statement = {f"only {number}": file.digest for number, file in enumerate(self.only, 1)}
        for file in self.files:
            for entry in sorted(file.entries, key=lambda one: (one.never, one.line)):
                if entry.never or not self.only:
                    words = f"{entry.condition}: {entry.reason}".removesuffix(": ")
                    statement[f"{'never' if entry.never else 'use'} {entry.id}"] = words
        if any(file.broken for file in self.files):
            statement["never entries"] = "unreadable"
        # Once more in their order, which decides where two answer one question.
        return statement | {"overrides": digest_json(list(statement.items()))} if statement else {}


NO_OVERRIDES = Overrides()


def user_file(environ: Mapping[str, str]) -> str:
    """``overrides.json`` in the user's configuration directory, where lookups find it; ``""`` without a home."""
    folder = config_directory(environ)
    return os.path.join(folder, "overrides.json") if folder else ""


def files_in_force(environ: Mapping[str, str]) -> tuple[OverridesFile, ...]:
    """The files that a job of this user uses: those of ``ATTN_TUNE_OVERRIDES``, then the user's own.

    Bad entries are left out with a warning. So is the user's own file, if it cannot be read: nothing stored runs then.

    Raises:
      StorageError, IntegrityError: a file of the variable cannot be read. It might be ``only``.
    """
    named, own = _named(environ), user_file(environ)
    files: list[OverridesFile] = []
    # A link that leads nowhere is there: it is a file that cannot be read.
    for path in [*named, own] if own not in named and os.path.lexists(own) else named:
        try:
            files.append(read_overrides(path, leave_out_bad=True))
        except (StorageError, IntegrityError) as error:
            if path in named:
                message = f"{error}; mend the file, or {way_out(path, environ)}"
                raise type(error)(message) from None
            files.append(OverridesFile(path=path, broken=str(error)))
    for file in files:
        for sentence in filter(None, (*file.ignored, file.broken)):
            log.warning("ignored: %s", sentence)
    return tuple(files)


def way_out(path: str, environ: Mapping[str, str]) -> str:
    """The step after which jobs do without the file at ``path``, as a command where there is one."""
    named = _named(environ)
    if path in named:
        rest = os.pathsep.join(one for one in named if one != path)
        return f"export {VARIABLE}={shlex.quote(rest)}" if rest else f"unset {VARIABLE}"
    if path == user_file(environ):
        return f"mv {shlex.quote(path)} {shlex.quote(path + '.off')}"
    return f"leave its 'with attn_tune.use_overrides({path!r})' block"


def ended_by(file: OverridesFile, entry: Entry, environ: Mapping[str, str]) -> str:
    """The step that ends an entry: a command for one of a file, or the end of its block."""
    if file.only:
        return way_out(file.path, environ)
    if entry.origin:
        return f"attn-tune override remove {entry.id} --file {shlex.quote(entry.origin)}"
    return "leave its 'with attn_tune.use_config(...)' block"


def _named(environ: Mapping[str, str]) -> list[str]:
    paths = environ.get(VARIABLE, "").split(os.pathsep)
    return list(dict.fromkeys(path for path in paths if path))
