"""The recorded terminal of docs/cli-live.md: every phase, in 80 columns, and the two windows of one moment agree."""

import re
import sys

import pytest

from tests.test_docs import DOCS


@pytest.fixture
def recorder(monkeypatch):
    monkeypatch.syspath_prepend(DOCS)
    import record_terminal

    yield record_terminal
    sys.modules.pop("record_terminal")


@pytest.fixture
def screens(recorder):
    return recorder.sections(recorder.OUT.read_text(encoding="utf-8"))


def test_the_recording_has_each_phase_on_a_screen_of_its_name(recorder, screens):
    for phase in recorder.PHASES:
        assert re.search(rf"\b{phase}\b", screens[phase]), phase
    narrow = [text for name, text in screens.items() if name != recorder.LOG]
    assert all(len(line) <= 80 for text in narrow for line in text.splitlines())


def test_the_recorded_watch_says_the_same_as_the_sweep_beside_it(recorder, screens):
    ours, theirs = screens[recorder.SHOWN].splitlines(), screens[recorder.WATCHED].splitlines()
    case = re.compile(r"(cpu-smoke\S+ \w+)\s+(\w+)\s+(\w+) \d+s")
    assert case.search(ours[0]).groups() == case.search(theirs[1]).groups()
    (done,) = (re.search(r"\d+/\d+ configs", line)[0] for line in ours if "configs" in line)
    assert any(done in line for line in theirs)
    assert "finished" in screens[recorder.STATUS]


def test_the_recorded_log_goes_to_the_finals(recorder, screens):
    first, *_, last = screens[recorder.LOG].splitlines()
    assert first.startswith("starting")
    assert "finals" in last
