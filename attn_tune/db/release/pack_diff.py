"""Differences between two packs: rows that are added, removed or changed."""

import enum
from dataclasses import dataclass

from attn_tune.packs.reader import Pack
from attn_tune.packs.rows import Row
from attn_tune.schema import config_to_json
from attn_tune.schema.decision import state_words
from attn_tune.schema.words import config_words


class Change(enum.StrEnum):
    """A kind of difference."""

    ADDED = "added"
    """Only the new pack has the row."""
    REMOVED = "removed"
    """Only the old pack has the row."""
    CHANGED = "changed"
    """Another config, rank or doubt."""
    EVIDENCE = "evidence"
    """The same config, rank and doubts, but another time, state or environment."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """One row that differs.

    Attributes:
      change: the kind of difference.
      signature: the problem.
      direction: the direction.
      device: the device's name.
      kernel: the kernel's name.
      before: rank, config, state and doubts of the old row as text, ``""`` where there is none.
      before_ns: the old time in nanoseconds, None where there is none.
      after: rank, config, state and doubts of the new row.
      after_ns: the new time in nanoseconds, None where there is none.
    """

    change: Change
    signature: str
    direction: str
    device: str
    kernel: str
    before: str
    before_ns: int | None
    after: str
    after_ns: int | None

    @property
    def ratio(self) -> float | None:
        """New time over old time."""
        if not self.before_ns or self.after_ns is None:
            return None
        return self.after_ns / self.before_ns


@dataclass(frozen=True, kw_only=True, slots=True)
class ListChange:
    """One entry of a quarantine list that only one of two packs carries.

    Attributes:
      change: added or removed.
      speaks_of: the condition of the entry.
      reason: the reason of the entry.
    """

    change: Change
    speaks_of: str
    reason: str


def diff_quarantine(old: Pack, new: Pack) -> list[ListChange]:
    """The entries that only one of the two carries."""
    before, after = ({e.line: e for e in pack.quarantine.entries} for pack in (old, new))
    sides = ((Change.REMOVED, before, after), (Change.ADDED, after, before))
    return [
        ListChange(change=change, speaks_of=entry.condition, reason=entry.reason)
        for change, mine, other in sides
        for line, entry in mine.items()
        if line not in other
    ]


def diff_packs(old: Pack, new: Pack) -> list[Difference]:
    """The rows that differ, by problem and kernel."""
    before, after = ({row.key: row for row in pack.rows} for pack in (old, new))
    found = []
    for key in sorted(before.keys() | after.keys(), key=lambda k: (k[1], k[2], k[0], k[3])):
        a, b = before.get(key), after.get(key)
        if (change := _change(a, b)) is None:
            continue
        device = new.devices.get(key[0]) or old.devices[key[0]]
        found.append(
            Difference(
                change=change,
                signature=key[1],
                direction=key[2],
                device=str(device),
                kernel=key[3],
                before=_say(a),
                before_ns=a.median_ns if a else None,
                after=_say(b),
                after_ns=b.median_ns if b else None,
            )
        )
    return found


def _change(a: Row | None, b: Row | None) -> Change | None:
    if a is None:
        return Change.ADDED
    if b is None:
        return Change.REMOVED
    if (a.rank, a.doubts, config_to_json(a.config)) != (b.rank, b.doubts, config_to_json(b.config)):
        return Change.CHANGED
    return None if a == b else Change.EVIDENCE


def _say(row: Row | None) -> str:
    if row is None:
        return ""
    return ", ".join((f"#{row.rank} {config_words(row.config)} {state_words(row.state)}", *row.doubts))
