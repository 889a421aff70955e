"""Strategies: in which order candidates are tried, and when to stop.

A strategy is a generator function over a ``Space``. It yields a batch of candidates to try next and is sent their
times, ``inf`` for a config that failed. Strategies know no device, so that a stored sweep can be replayed through them.
"""

from attn_tune.tuner.plan.strategies.effort import (
    Effort as Effort,
    EffortName as EffortName,
    StrategyName as StrategyName,
    make_effort as make_effort,
)
from attn_tune.tuner.plan.strategies.exhaustive import exhaustive as exhaustive
from attn_tune.tuner.plan.strategies.portfolio import portfolio as portfolio
from attn_tune.tuner.plan.strategies.random_order import random_order as random_order
from attn_tune.tuner.plan.strategies.space import (
    Batch as Batch,
    Candidate as Candidate,
    PastCase as PastCase,
    Prior as Prior,
    Search as Search,
    Space as Space,
    Strategy as Strategy,
    Times as Times,
    send as send,
)
from attn_tune.tuner.plan.strategies.surrogate import surrogate as surrogate
