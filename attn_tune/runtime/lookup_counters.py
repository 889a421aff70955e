"""The counts of all lookups, by rung. Counting one is one addition to a list that the answer holds."""

import dataclasses
import os

from attn_tune.runtime import misses
from attn_tune.runtime.lookup.answer import Rung
from attn_tune.runtime.misses import Stats

# A list of one number a rung: to add to it needs no hash, and the GIL lets no other thread come between.
_tallies: dict[Rung, list[int]] = {rung: [0] for rung in Rung}


def tally(rung: Rung) -> list[int]:
    """The one-element list that counts ``rung``; every lookup adds one to its element."""
    return _tallies[rung]


def stats() -> Stats:
    """The counts since the start of the process or the last ``reset_stats``: lookups by rung, and the misses.

    An explicit ``config=`` is not a lookup and not counted. On a Python without the GIL, threads that look up at the
    very same moment may lose a count.
    """
    return dataclasses.replace(misses.stats(), lookups={rung: count[0] for rung, count in _tallies.items()})


def reset_stats() -> None:
    """Resets the counts."""
    _reset()
    misses.reset_stats()


def _reset() -> None:
    for count in _tallies.values():
        count[0] = 0


# A forked child counts for itself.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset)
