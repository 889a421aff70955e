"""Puts a pack into the folder where every job of this user finds it."""

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

from attn_tune.schema import IntegrityError, StorageError, UsageError
from attn_tune.schema.words import counted


def user_packs() -> Path:
    """``attn-tune/packs`` in the user's data directory (XDG)."""
    from attn_tune.commands.shared.options import data_directory

    return data_directory() / "packs"


def install_pack(path: Path, *, replace: bool = False) -> Path:
    """Verifies the pack at ``path`` and copies it; an equal one that is there already stays.

    A file gets the suffix that lookups know a pack by. With ``replace`` the pack takes the place of what has its name
    there, in one step.

    Raises:
      IntegrityError: the pack is not what it claims to be.
      StorageError: it cannot be copied, or another pack of that name is there.
      UsageError: its name begins with a dot.
    """
    from attn_tune.packs.reader import read_pack
    from attn_tune.packs.writer import check_target

    pack = read_pack(path)
    target = place_of(path)
    folder = target.parent
    try:
        if replace:
            check_target(target, overwrite=True)
        elif target.exists():
            if read_pack(target).digest == pack.digest:
                return target
            raise StorageError(f"{target} is another pack; put this one in its place with --replace, or rename {path}")
        folder.mkdir(parents=True, exist_ok=True)
        # Copied aside and renamed, so that no job ever meets half a pack.
        with tempfile.TemporaryDirectory(dir=folder, prefix=".incoming-") as aside:
            copy = Path(aside) / target.name
            _copy(path, copy)
            read_pack(copy)
            if target.is_dir() or (copy.is_dir() and target.exists()):
                _exchange(copy, target)
            else:
                os.replace(copy, target)
    except OSError as error:
        if isinstance(error, StorageError):
            raise
        raise StorageError(f"cannot install {path} in {folder}: {error.strerror or error}") from None
    return target


def place_of(path: Path) -> Path:
    """The path among the user's packs of the one that is at ``path`` now.

    Raises:
      UsageError: its name begins with a dot.
    """
    from attn_tune.packs.archive import SUFFIX

    if path.name in ("", ".."):  # such as ".", which would stand for the folder of packs itself
        path = path.resolve()
    if path.name.startswith("."):
        raise UsageError(f"lookups take {path.name!r} for a draft, as every name that begins with a dot: rename it")
    return user_packs() / (path.name if path.is_dir() or path.suffix == SUFFIX else path.name + SUFFIX)


def never_entries(path: Path) -> set[str]:
    """The conditions of the quarantine list of the pack at ``path``; none of a broken pack, which lookups ignore."""
    from attn_tune.packs.reader import open_pack

    try:
        return {entry.condition for entry in open_pack(path, signed=False).quarantine.entries}
    except (IntegrityError, StorageError):
        return set()


def shared_problems(installed: Path) -> str:
    """A sentence that names the other packs with answers for problems of the pack at ``installed``, and the first.

    ``""`` without any. Packs that ship within attn-tune do not count: every imported one is asked before them.
    """
    from attn_tune.packs.reader import read_pack
    from attn_tune.runtime.active.sources import locations

    places = locations(os.environ)
    answers = {str(installed): {row.key[:3] for row in read_pack(installed).rows}}
    order = list(dict.fromkeys([*places.user, *places.wheels]))
    for path in order:
        with contextlib.suppress(IntegrityError, StorageError, UsageError):  # as lookups do
            answers.setdefault(path, {row.key[:3] for row in read_pack(path).rows})
    own = answers[str(installed)]
    others = [path for path in order if path != str(installed) and own & answers.get(path, set())]
    if not others:
        return ""
    count = len(own.intersection(set().union(*(answers[path] for path in others))))
    first = next(path for path in order if path == str(installed) or path in others)
    return (
        f"{counted(count, 'problem')} of {installed} {'has an answer' if count == 1 else 'have answers'} in "
        f"{' and '.join(others)} too; {first} is asked first: packs of ATTN_TUNE_PACKS, then by file name"
    )


def _copy(path: Path, copy: Path) -> None:
    # The error of shutil.copytree is a list of those of all files.
    if path.is_dir():
        copy.mkdir()
        for one in path.iterdir():
            _copy(one, copy / one.name)
    else:
        shutil.copyfile(path, copy)


def _exchange(new: Path, old: Path) -> None:
    from attn_tune.packs.plain_files import exchange

    try:
        exchange(new, old)
    except OSError as error:
        reason = error.strerror or error
        raise StorageError(f"{old} cannot be replaced in one step: {reason}; remove it, then import again") from None
