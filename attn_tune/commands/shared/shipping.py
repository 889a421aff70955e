"""Steps from decisions in a lab database to a pack in use, and the objections of the release gate."""

import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from attn_tune.schema.words import counted

if TYPE_CHECKING:
    from attn_tune.db import Objection
    from attn_tune.schema import Decision

# The reasons of the gate that are shown; ``export`` lists all rows.
_REASONS = 5


def steps_to_ship(db: Path, decisions: "Sequence[Decision]") -> list[str]:
    """The commands that make the user's jobs find ``decisions`` of ``db``."""
    from attn_tune.db import needs_leave

    leave = " --allow-nondeterministic" if all(map(needs_leave, decisions)) else ""
    return [
        f"  attn-tune export my-pack --db {shlex.quote(str(db))}{leave}",
        "  attn-tune pack import my-pack",
    ]


def gate_lines(objections: "Sequence[Objection]", rows: int) -> "Iterator[str]":
    """The reasons for which ``export`` will refuse some of ``rows`` rows; no line without ``objections``."""
    if objections:
        refused = len({id(one.decision) for one in objections})
        yield f"But export will refuse {refused} of {counted(rows, 'row')} as they are:"
    reasons = Counter(one.reason for one in objections).most_common()
    for reason, count in reasons[:_REASONS]:
        yield f"  {counted(count, 'row')}: {reason}"
    if len(reasons) > _REASONS:
        yield f"  and for {counted(len(reasons) - _REASONS, 'more reason')}"
