"""Devices of one name on a page, and times that no trial has."""

import dataclasses

import pandas as pd
import pytest

from attn_tune.reports.page.told_apart import Names, check_times
from attn_tune.schema import IntegrityError
from tests.db.facts import DEVICE

SECOND = dataclasses.replace(DEVICE, power_watts=(DEVICE.power_watts or 0) + 100)


def table(*devices):
    return pd.DataFrame({"device": [str(d) for d in devices], "device_digest": [d.digest for d in devices]})


def test_devices_of_one_name_are_told_apart_by_their_digests():
    assert (str(DEVICE), DEVICE.digest) == (str(SECOND), DEVICE.digest) or DEVICE.digest != SECOND.digest
    trials = table(DEVICE, SECOND, DEVICE)
    first, second, third = Names([trials], []).frame(trials)["device"]
    assert first == third != second
    assert all(name.startswith(f"{DEVICE} (") for name in (first, second))


def test_a_device_that_is_alone_keeps_its_name():
    trials = table(DEVICE, DEVICE)
    assert Names([trials], []).frame(trials) is trials


def rows(**changes):
    row = {"trial": 7, "status": "ok", "median_us": 5.0, "compile_ms": 3.0, "prove_ms": None, "run_ms": 1.0}
    return pd.DataFrame([row | changes])


@pytest.mark.parametrize(
    "changes", [{"median_us": float("inf")}, {"median_us": -5.0}, {"median_us": 1e-300}, {"compile_ms": 1e308}]
)
def test_times_that_no_trial_has_are_named(changes):
    ((name, value),) = changes.items()
    with pytest.raises(IntegrityError, match=f"lab.db is damaged: trial 7 has {name} {value:g}".replace("+", r"\+")):
        check_times(rows(**changes), "lab.db")


def test_times_of_trials_pass():
    check_times(rows(), "lab.db")
    check_times(rows(status="crashed", median_us=None), "lab.db")
