"""Trials that ``kill_database.py`` fills databases with, and ``Operation``, the base class of all that it kills."""

import functools
from collections.abc import Callable
from pathlib import Path

from attn_tune.db import Database
from attn_tune.ops.flash_attention.problem import Problem
from attn_tune.schema import Device, Environment, Measurement, OutputError, Protocol, Status, Trial

DEVICE = Device(platform="cuda", family="sm_90", variant="nvidia-h200", units=132)
ENVIRONMENT = Environment(jax="0.12.0", jaxlib="0.12.0", triton="3.9.0", source_hash="b2:s")
SIGNATURE = Problem(batch=1, q_len=128, kv_len=128, num_q_heads=4, num_kv_heads=2, head_dim=64, v_head_dim=64).signature
type Say = Callable[[int], object]


@functools.cache
def make_trial(number: int, *, median: int | None = None) -> Trial:
    """A trial that is known by its number; every fifth one failed."""
    config = {"i": number}
    shared = {"kernel": "flash_attention/triton", "direction": "fwd", "signature": SIGNATURE}
    shared |= {"device": DEVICE, "environment": ENVIRONMENT, "config": config}
    if number % 5 == 4:
        reason = f"ptxas: {number}"
        return Trial(**shared, status=Status.COMPILE_ERROR, reason=reason)
    middle = 1000 + number % 50 if median is None else median
    samples = (middle, middle + 1, middle - 1)
    return Trial(
        **shared,
        status=Status.OK,
        is_heuristic=number % 7 == 0,
        errors=(OutputError(output="out", error=0.001 * (number % 9), allowed=0.05),),
        measurement=Measurement(samples_ns=samples, protocol=Protocol(timer="cupti", warmup=1, flush_l2=True)),
        started_us=1000 * number,
    )


class Operation:
    """One thing to do to a database in ``folder``, and what must be true after it was killed."""

    def __init__(self, folder: Path):
        self.path = folder / "lab.db"
        self.folder = folder
        self.prepare()

    def prepare(self) -> None:
        """Once in each new folder."""

    def before(self) -> None:
        """Before each child, in the parent."""

    def act(self, say: Say) -> None:
        """In the child. ``say`` what was acknowledged."""
        raise NotImplementedError

    def check(self, said: list[int]) -> list[str]:
        """In the parent, after the child: what is wrong."""
        raise NotImplementedError


def fill(database: Database, numbers: range, *, median: int | None = None) -> None:
    """One run with these trials."""
    run = database.begin_run(device=DEVICE, environment=ENVIRONMENT, argv=["kill"])
    database.record_many(run, [make_trial(number, median=median) for number in numbers])
    database.end_run(run, "finished")
