"""Files of overrides: JSON, sorted, an entry a line, written whole or not at all.

::

    {"format": 1, "only": false,
     "use": [{"op": "my_op", "direction": "fwd", "kernel": "xla", "config": {"rows": 64},
              "device": "nvidia-h200", "reason": "A/B test"}],
     "never": [{"op": "my_op", "kernel": "fast", "direction": "bwd", "device": "sm_90",
                "config": {"rows": 8}, "signature": {"h": 256}, "reason": "wrong"}]}

Every part but ``format`` may be left out. ``freeze`` adds ``frozen``: the digest of the ``use`` entries, and the
environment they were frozen in.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from attn_tune.packs.override_entries import TEXTS, Entry, Frozen
from attn_tune.packs.plain_files import only_writer, read_limited, write_whole
from attn_tune.packs.strict_json import parse_json
from attn_tune.schema.config import config_from_dict, is_mapping
from attn_tune.schema.digest import canonical_json, digest_json
from attn_tune.schema.errors import IntegrityError, StorageError, UsageError

FORMAT = 1
MAX_TEXT = 1000

_MAX_BYTES = 256 * 1024 * 1024
_PARTS = ("format", "frozen", "never", "only", "use")
_WORDS = {str: f"a text of at most {MAX_TEXT} printable characters", dict: "an object"}
_NEEDED = {"use": ("op", "direction", "kernel", "config"), "never": ("reason",)}


@dataclass(frozen=True, kw_only=True, slots=True, eq=False, repr=False)
class OverridesFile:
    """The overrides of one file, of one ``with`` block, or that a pack carries. They are equal if their digests are.

    Attributes:
      path: path of the file, ``""`` without one.
      entries: entries that answer or forbid.
      only: whether nothing but the ``use`` entries of such files may answer.
      frozen: tool and environment that froze it; empty for a file that is not frozen.
      ignored: the ``use`` entries that were left out, and why.
      broken: why ``never`` entries could not be read, ``""`` if all could. Nothing stored may run then, for any of it
        may be forbidden.
      digest: names all that decides an answer.
    """

    path: str = ""
    entries: tuple[Entry, ...] = ()
    only: bool = False
    frozen: Mapping[str, Any] = field(default_factory=dict[str, Any])
    ignored: tuple[str, ...] = ()
    broken: str = ""
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        lines = [sorted((entry.never, entry.line) for entry in self.entries)]
        object.__setattr__(self, "digest", digest_json([self.only, *lines, self.ignored, self.broken]))

    # Overrides are part of JAX's jit key: equal content read twice must not retrace.
    def __eq__(self, other: object) -> bool:
        return isinstance(other, OverridesFile) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        never = sum(entry.never for entry in self.entries)
        facts = [
            f"{len(self.entries) - never} use",
            f"{never} never",
            *(word for word in ("only", "frozen", "broken") if getattr(self, word)),
        ]
        return f"<OverridesFile {self.path or '(no file)'}: {', '.join(facts)}>"

    @property
    def name(self) -> str:
        """The name without the folder; of a block, the questions that it answers."""
        return os.path.basename(self.path) or str([entry.key for entry in self.entries])

    @property
    def text(self) -> str:
        """The content of the file. Equal overrides give equal text."""
        lines = {
            name: sorted({entry.line for entry in self.entries if entry.never == never})
            for name, never in (("never", True), ("use", False))
        }
        parts = [f'"format":{FORMAT}', *(['"only":true'] if self.only else [])]
        if self.frozen:
            head = {**self.frozen, "digest": digest_json(lines["use"])}
            parts.append(f'"frozen":{canonical_json(head)}')
        parts += [f'"{name}":[\n' + ",\n".join(found) + "\n]" for name, found in lines.items() if found]
        return "{" + ",\n".join(parts) + "}\n"


NO_OVERRIDES = OverridesFile()


def read_overrides(path: str | os.PathLike[str], *, leave_out_bad: bool = False) -> OverridesFile:
    """The overrides in the file at ``path``.

    With ``leave_out_bad`` a bad entry is no error in a file that is not ``only``: see ``ignored`` and ``broken``.

    Raises:
      StorageError: the file cannot be read.
      IntegrityError: it is not a file of overrides; the sentence says what is wrong.
    """
    where = f"the overrides file {path}"
    data = parse_json(read_limited(path, where, _MAX_BYTES), where)
    return parse_overrides(data, os.fspath(path), where, leave_out_bad=leave_out_bad)


def change_overrides(
    path: str | os.PathLike[str], change: Callable[[tuple[Entry, ...]], tuple[Entry, ...]]
) -> OverridesFile:
    """Write what ``change`` makes of the entries at ``path`` (none where there is no file); return it.

    One writer at a time: who comes while another writes waits, so that no entry is lost.

    Raises:
      As ``read_overrides``; StorageError also if the file cannot be written.
    """
    target = Path(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with only_writer(target):
            exists = os.path.lexists(target)
            before = read_overrides(target) if exists else OverridesFile(path=str(target))
            after = replace(before, entries=change(before.entries))
            write_whole(target, after.text.encode())
    except StorageError:
        raise
    except OSError as error:
        reason = error.strerror or error
        raise StorageError(f"the overrides file {path} cannot be written: {reason}") from None
    return after


def parse_overrides(data: Any, origin: str, where: str, *, leave_out_bad: bool = False) -> OverridesFile:
    """The overrides of parsed JSON, as ``read_overrides``. ``where`` names the file in errors.

    Raises:
      IntegrityError: as ``read_overrides``.
    """
    if not is_mapping(data) or type(data.get("format")) is not int or data["format"] != FORMAT:
        raise IntegrityError(f'{where} is not of format {FORMAT}; it needs "format": {FORMAT}')
    if unknown := sorted(set(data) - {*_PARTS}):
        raise IntegrityError(f"{where}: unknown part {unknown[0]!r}; known: {', '.join(_PARTS)}")
    kinds: dict[str, type] = {"only": bool, "frozen": dict, "use": list, "never": list}
    for name, kind in kinds.items():
        if type(data.get(name, kind())) is not kind:
            raise IntegrityError(f"{where}: {name!r} must be a JSON {kind.__name__}")
    only: bool = data.get("only", False)
    frozen: dict[str, Any] = data.get("frozen", {})
    found: list[Entry] = []
    keys: set[object] = set()
    wrong: dict[str, list[str]] = {"use": [], "never": []}
    for section, errors in wrong.items():
        for number, item in enumerate(data.get(section, []), 1):
            try:
                entry = _entry(item, section, origin, f"{where}: {section} entry {number}")
                if not entry.never and entry.key in keys:
                    raise IntegrityError(
                        f"{where}: two use entries have the condition of entry {number}; delete one of them"
                    )
                keys.add(entry.key)
                found.append(entry)
            except IntegrityError as error:
                if only or not leave_out_bad:
                    raise
                errors.append(str(error))
    if frozen:
        lines = sorted(entry.line for entry in found if not entry.never)
        if frozen.get("digest") != digest_json(lines):
            raise IntegrityError(
                f"{where} does not have the digest that 'frozen' says, so it was edited or cut; "
                "freeze the job again, or delete 'frozen' to use it as it is"
            )
    return OverridesFile(
        path=origin,
        entries=tuple(found),
        only=only,
        frozen={name: value for name, value in frozen.items() if name != "digest"},
        ignored=tuple(wrong["use"]),
        broken=next(iter(wrong["never"]), ""),
    )


def _entry(item: Any, section: str, origin: str, where: str) -> Entry:
    """The entry of one JSON object. An unknown condition is refused: without it the entry would match too much."""
    known: dict[str, tuple[type, ...]] = dict.fromkeys(TEXTS, (str,)) | {"config": (dict,), "signature": (str, dict)}
    if section == "use":
        known["frozen"] = (dict,)
    problem = ""
    evidence: dict[str, Any] = {}
    if not is_mapping(item):
        problem = f"is no object, but {item!r:.60}"
    elif unknown := sorted(set(item) - set(known)):
        problem = f"has the unknown field {unknown[0]!r}"
    elif missing := [name for name in _NEEDED[section] if item.get(name) in (None, "")]:
        problem = f"gives no {missing[0]!r}"
    elif wrong := [name for name in item if not _is_one(item[name], known[name])]:
        allowed = " or ".join(_WORDS[kind] for kind in known[wrong[0]])
        problem = f"has a wrong {wrong[0]!r}: {item[wrong[0]]!r:.60}, where {allowed} must be"
    elif "frozen" in item:
        try:
            evidence = {"frozen": config_from_dict(Frozen, item["frozen"])}
        except UsageError as error:
            problem = f"has a wrong 'frozen': {error}"
    if problem:
        raise IntegrityError(f"{where} {problem}; correct it, or delete the entry")
    values: dict[str, Any] = {"config": {}, **item, **evidence}
    return Entry(**values, never=section == "never", origin=origin)


def _is_one(value: Any, kinds: tuple[type, ...]) -> bool:
    """Whether ``value`` is of one of ``kinds``. A text is printed, and the file of a pack may be anybody's."""
    is_fit = not isinstance(value, str) or (len(value) <= MAX_TEXT and value.isprintable())
    return type(value) in kinds and is_fit
