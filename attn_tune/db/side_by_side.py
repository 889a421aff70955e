"""Decisions of many problems by several processes, each with a reader of its own."""

import logging
import multiprocessing
import sqlite3
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from attn_tune.db.catalog import Catalog
from attn_tune.db.connection import open_reader
from attn_tune.db.decision_table import Problem, decide_problem, open_problems
from attn_tune.schema import Decision

logger = logging.getLogger(__name__)

# Fewer are decided before another process has started.
LEAST_PROBLEMS = 400
# What one process takes at a time: little enough that all end together.
_SHARE = 32

# Of a process that decides.
_reader: tuple[sqlite3.Connection, Catalog] | None = None


def decide_side_by_side(
    path: Path, problems: Sequence[Problem], processes: int
) -> list[tuple[Problem, tuple[Decision, ...]]] | None:
    """Each problem of the lab database at ``path`` with its decisions, in order.

    None where it has to be done without: there are too few problems, or a process died. They are spawned, so that a
    caller's ``__main__`` must be importable, as ``multiprocessing`` asks.
    """
    if len(problems) < LEAST_PROBLEMS:
        return None
    try:
        return _decide_all(path, problems, processes)
    except BrokenProcessPool as error:
        logger.warning("%s: deciding in one process instead of %d: %s", path, processes, error)
        return None


def _decide_all(
    path: Path, problems: Sequence[Problem], processes: int
) -> list[tuple[Problem, tuple[Decision, ...]]]:
    shares = [problems[i : i + _SHARE] for i in range(0, len(problems), _SHARE)]
    with ProcessPoolExecutor(
        processes,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_begin,
        initargs=(path,),
    ) as pool:
        decided = [one for share in pool.map(_decide, shares) for one in share]
    return list(zip(problems, decided, strict=True))


def _begin(path: Path) -> None:
    global _reader
    connection, _ = open_reader(path)
    _reader = connection, Catalog(connection)
    open_problems(connection, ())


def _decide(problems: Sequence[Problem]) -> list[tuple[Decision, ...]]:
    assert _reader is not None
    return [decide_problem(*_reader, problem) for problem in problems]
