"""The loop of a sweep: walks a plan, asks an executor, yields trials. Knows no database and no terminal."""

import threading
from collections.abc import Iterator

from attn_tune.tuner.executor import Executor
from attn_tune.tuner.plan import Plan
from attn_tune.tuner.progress import Event
from attn_tune.tuner.strategies import Strategy, exhaustive


def sweep(
    plan: Plan,
    executor: Executor,
    *,
    budget_s: float | None = None,
    stop: threading.Event | None = None,
    strategy: Strategy = exhaustive,
) -> Iterator[Event]:
    """Runs ``plan``, yielding each trial as it ends, and progress in between.

    Stops early, after the config at hand, when ``budget_s`` is spent or ``stop`` is set; what was yielded stands, and a
    plan made with it goes on from there.
    """
    raise NotImplementedError
