"""A small lab with something of everything that a page shows, and the pages of it."""

import itertools
import re
from collections.abc import Iterator
from xml.etree import ElementTree

import pandas as pd

from attn_tune.commands.shared.narrowing import Narrowing
from attn_tune.commands.shared.report_page import page_data
from attn_tune.db import Database
from attn_tune.reports.page.data import PageData
from attn_tune.schema import Prediction, Signature, Status
from attn_tune.schema.conditions import Conditions
from tests.db.facts import DEVICE, OTHER_DEVICE, begin, make_signature, make_trial

EVIL = "<script>alert('x')</script> & \"quoted\"\nsecond line"
MAIN, TIED = make_signature(q_len=4096, kv_len=4096), make_signature(q_len=512, kv_len=512)
NEAR = make_signature(q_len=2048, kv_len=2048)  # failed, but the winner of MAIN can be adapted
BROKEN = make_signature(head_dim=96, v_head_dim=96)
PREDICTED = make_signature(batch=3)
FOREIGN = Signature("not_installed", 1, (("rows", 7),))
CONFIGS = [
    {"block_q": q, "block_k": k, "num_stages": s, "num_warps": w}
    for q, k, s, w in itertools.product((64, 128), (32, 64), (2, 3), (4, 8))
]
# The untuned config of the main problem, and the one that is fastest there.
DEFAULT, BEST = CONFIGS[0], CONFIGS[-1]
CONDITIONS = Conditions(sm_clock_mhz=(1905, 1980), temperature_c=(41, 57), power_w=(300, 650), repeats=1)


def time_of(config) -> int:
    """Nanoseconds of a config on the main problem: 200 us for the default, 100 us for the best."""
    places = {name: sorted({c[name] for c in CONFIGS}).index(value) for name, value in config.items()}
    return (
        200_000
        - 55_000 * places["block_q"]
        - 25_000 * places["block_k"]
        - 13_000 * places["num_stages"]
        - 7_000 * places["num_warps"]
    )


def samples(center, count, spread=0.002, step=7):
    """Samples around ``center``, in an order that is no drift."""
    return tuple(int(center * (1 + spread * ((step * i) % 11 - 5) / 5)) for i in range(count))


def trials() -> Iterator:
    """The trials: a win, a tie, failures of several classes, predictions, an op that is not installed."""
    clock = itertools.count(1_700_000_000_000_000, 2_000_000)
    cost = {"compile_ms": 500.0, "prove_ms": 100.0, "run_ms": 40.0}

    def made(config, center=0, **changes):
        started = next(clock)
        return make_trial(
            config, samples(center or 1, 5), started_us=started, ended_us=started + 1_500_000, **(cost | changes)
        )

    failing = {3: Status.OUT_OF_RESOURCES, 7: Status.COMPILE_ERROR, 11: Status.OUT_OF_RESOURCES}
    for place, config in enumerate(CONFIGS):
        if config["block_q"] == 64 and config["block_k"] == 64:
            yield made(config, signature=MAIN, status=Status.OUT_OF_RESOURCES, reason=EVIL)
        elif place in failing:
            yield made(config, signature=MAIN, status=failing[place], reason=f"it is {failing[place]}")
        else:
            yield made(config, time_of(config), signature=MAIN, is_heuristic=config == DEFAULT)
    yield from _final(MAIN, [(DEFAULT, 200_000), (BEST, 100_000)], next(clock))
    for config in (DEFAULT, BEST):
        yield made(config, 50_000, signature=TIED, is_heuristic=config == DEFAULT)
    yield from _final(TIED, [(DEFAULT, 50_000), (BEST, 50_010)], next(clock), "b" * 32)
    yield made(DEFAULT, signature=NEAR, status=Status.CRASHED, reason="signal 11")
    yield made(DEFAULT, signature=BROKEN, status=Status.UNSUPPORTED, reason="head dim 96 is too odd")
    prediction = Prediction(ns=5_000, low_ns=4_000, high_ns=7_000, model="walk/1")
    yield made(
        DEFAULT, signature=PREDICTED, status=Status.PREDICTED, device=OTHER_DEVICE, prediction=prediction, reason=""
    )
    for config, center in (({"split": 1}, 9_000), ({"split": 2}, 8_000)):
        yield made(config, center, kernel="not_installed/own", signature=FOREIGN, is_heuristic=center == 9_000)


def _final(signature, centers, started, round_id="a" * 32) -> Iterator:
    for place, (config, center) in enumerate(centers):
        yield make_trial(
            config,
            samples(center, 24, step=7 + 2 * place),
            signature=signature,
            started_us=started,
            round_id=round_id,
            run_ms=300.0,
            is_heuristic=config == DEFAULT,
            conditions=CONDITIONS,
            device=DEVICE,
        )


def fill(path, found=None):
    """A database with ``found``, by default ``trials()``, decided."""
    with Database.open(path, create=True) as database:
        run = begin(database)
        database.record_many(run, list(trials() if found is None else found))
        database.end_run(run, "finished")
        database.rebuild_decisions()
    return path


def data_of(path, names=None, wanted=None) -> PageData:
    """The frames of the page of a database."""
    with Database.open(path, read_only=True) as database:
        frames = database.frame("trials"), database.frame("imported")
        narrowing = Narrowing(problems=wanted, kernels=None, directions=None, device=None)
        return page_data(database, database.decisions(rank=0), *frames, names or {}, narrowing)


def tree(parts) -> ElementTree.Element:
    """The elements of a part."""
    return ElementTree.fromstring(f"<part>{''.join(map(str, parts))}</part>")


def classes(root, name) -> list[ElementTree.Element]:
    """The elements with a class."""
    return [e for e in root.iter() if name in e.get("class", "").split()]


def words(element) -> str:
    """All text of an element; that some of its spaces keep a line together is left out."""
    return "".join(element.itertext()).replace("\N{NO-BREAK SPACE}", " ")


def share(text) -> float:
    """The share of a coordinate."""
    assert re.fullmatch(r"-?[0-9.]+%", text), text
    return float(text[:-1]) / 100


def searched(data: PageData, signature=MAIN) -> pd.DataFrame:
    """The searched trials of a problem, by pandas alone."""
    frame = data.trials
    return frame.loc[(frame["signature"] == signature.text) & (frame["stage"] == "search")]
