"""Sweeps: plan, run in an isolated worker, validate, measure. Yields trials; knows no database and no terminal."""

from attn_tune.tuner.plan.case import Case as Case, GridPoint as GridPoint
from attn_tune.tuner.plan.plan import Plan as Plan, make_plan as make_plan
from attn_tune.tuner.protocol import Limits as Limits, MeasurePolicy as MeasurePolicy
from attn_tune.tuner.run.fleet.fleet import Fleet as Fleet
from attn_tune.tuner.run.progress import (
    Event as Event,
    Progress as Progress,
    ProgressKind as ProgressKind,
)
from attn_tune.tuner.run.sweep import sweep as sweep
