"""Lab databases and sides of sweeps whose times are planted, with noise of a seed."""

import numpy as np

from attn_tune.db import Database, Side
from attn_tune.db.compare.sides import Evidence, timed_by
from attn_tune.schema import Decision, Rule
from tests.db.facts import DEVICE, ENVIRONMENT, KERNEL, begin, make_signature, make_trial

CONFIG = {"block_q": 128, "num_warps": 4}


def problem(place):
    """The signature of the problem with this number."""
    return make_signature(batch=place + 1)


def noisy(rng, median_ns, noise, count=24):
    """Samples around a median in nanoseconds."""
    return tuple(int(value) for value in median_ns * np.exp(rng.normal(0, noise, count)))


def record_sweep(path, times, *, seed, noise=0.01, config=CONFIG, device=DEVICE, environment=ENVIRONMENT, **changes):
    """A database with one final a problem; ``times`` are nanoseconds by the problem's number."""
    rng = np.random.default_rng(seed)
    with Database.open(path, create=True) as database:
        run = begin(database, device, environment)
        for place, median_ns in times.items():
            trial = make_trial(
                config,
                noisy(rng, median_ns, noise),
                signature=problem(place),
                device=device,
                environment=environment,
                is_heuristic=True,
                features=3,
                round_id=f"r{place}",
                **changes,
            )
            database.record(run, trial)
        database.end_run(run, "finished")
        database.rebuild_decisions()
    return path


def side(times, *, seed, noise=0.01, count=24, kind="database", config=CONFIG, regret=0.0, **changes):
    """A side without a file; ``times`` as for ``record_sweep``."""
    rng = np.random.default_rng(seed)
    found = {place: noisy(rng, median_ns, noise, count) for place, median_ns in times.items()}
    decisions = {
        problem(place).text: Decision(
            op="flash_attention",
            direction="fwd",
            signature=problem(place),
            device=DEVICE,
            environment=ENVIRONMENT,
            kernel=KERNEL,
            config=config,
            **{"rule": Rule.TIE, "median_ns": int(np.median(samples)), "regret_bound": regret, "samples": count}
            | changes,
        )
        for place, samples in found.items()
    }
    evidence = {problem(place).text: Evidence(samples=samples) for place, samples in found.items()}
    return Side(
        name=f"seed {seed}",
        kind=kind,
        decisions=tuple(decisions.values()),
        evidence=lambda d: evidence[d.signature.text] if kind == "database" else None,
        timed=lambda: timed_by(decisions.values()),
    )
