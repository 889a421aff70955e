"""Hints for a search, from packs and from tables of other tools."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from attn_tune.integrations.tokamax import read_table
from attn_tune.packs.archive import is_pack
from attn_tune.packs.reader import read_pack
from attn_tune.schema.errors import UsageError
from attn_tune.tuner.plan.hints import Hint, Proposal, check_hint


@dataclass(frozen=True, kw_only=True)
class ReadHints:
    """The hints of one source.

    Attributes:
      proposals: those that can be tried here, distinct.
      skipped: the number of the others, by reason.
    """

    proposals: tuple[Proposal, ...]
    skipped: Counter[str]


def read_hints(path: Path) -> ReadHints:
    """The hints at ``path``: a pack of any device, or a table of tokamax, or a folder of such tables.

    Raises:
      StorageError: it cannot be read.
      IntegrityError: it is neither, or broken.
    """
    skipped: Counter[str] = Counter()
    hints = _of_pack(path) if is_pack(path) else read_table(path, skipped)
    proposals: dict[Proposal, None] = {}
    for hint in hints:
        try:
            proposals[check_hint(hint)] = None
        except UsageError as error:
            skipped[f"{hint.kernel} {hint.direction}: {error}"] += 1
    return ReadHints(proposals=tuple(proposals), skipped=skipped)


def _of_pack(path: Path) -> Iterator[Hint]:
    for row in read_pack(path, signed=False).rows:
        yield Hint(
            kernel=f"{row.op}/{row.kernel}",
            direction=row.direction,
            config=dict(row.config),
            signature=row.signature,
        )
