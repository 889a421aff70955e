"""The picture of a running sweep: scripted events, a made-up clock, consoles of every width, pipes."""

import io
import re
import threading

import pytest
from rich.console import Console

from attn_tune.commands.sweeps import display, progress
from attn_tune.commands.sweeps.progress import View
from attn_tune.commands.sweeps.tally import Tally, thinned
from attn_tune.reports.layout import text_width
from attn_tune.schema import Measurement, Protocol, Stage, Status, Trial
from attn_tune.tuner.plan.case import Case
from attn_tune.tuner.plan.grid import load_grid
from attn_tune.tuner.protocol import Phase
from attn_tune.tuner.run.progress import PhaseEntered, Progress, ProgressKind
from tests.cli.fakes import DEVICE, ENVIRONMENT, SIGNATURE, fill

SECOND = 1_000_000
ONE, TWO = (
    Case(
        signature=load_grid(text).points[0].signature,
        direction="fwd",
        names=(name,),
    )
    for text, name in (
        (SIGNATURE, "gemma3-27b.local.window1024/4x131072"),
        (SIGNATURE.replace("s=128", "s=256"), "llama3-8b/4x4k"),
    )
)


class Script:
    """Events of a sweep, one after the other, on a clock of their own."""

    def __init__(self, devices=("GPU 0",), platform="cuda", **more):
        self.now, self.done, self.devices, self.platform = 1_700_000_000 * SECOND, 0, tuple(devices), platform
        self.tally = Tally(now_us=lambda: self.now, **more)
        self.add = self.tally.add

    def later(self, seconds):
        self.now += round(seconds * SECOND)

    def progress(self, kind, case=None, place=0, kernel=""):
        self.add(
            Progress(
                kind=kind,
                done=self.done,
                total=120,
                elapsed_s=0.0,
                case=case,
                kernel=kernel,
                place=place,
                cases=6,
                devices=self.devices,
                platform=self.platform,
            )
        )

    def start(self, case, place=0, kernel="flash_attention/triton"):
        self.progress(ProgressKind.CASE_STARTED, case, place)
        self.progress(ProgressKind.KERNEL_STARTED, case, place, kernel)

    def phase(self, phase, place=0):
        self.add(PhaseEntered(place=place, phase=phase))

    def trial(self, case, ns=None, status=Status.OK, *, default=False, stage=Stage.SEARCH, kernel="triton"):
        self.done += 1
        measured = ns and Measurement(samples_ns=(ns,), protocol=Protocol(timer="host", warmup=1, flush_l2=False))
        self.add(
            Trial(
                kernel=f"flash_attention/{kernel}",
                direction=case.direction,
                signature=case.signature,
                device=DEVICE,
                environment=ENVIRONMENT,
                config={},
                status=status,
                stage=stage,
                reason="" if measured else "no",
                measurement=measured or None,
                is_heuristic=default,
            )
        )

    def screen(self, width=80, **more):
        shown = {"started_us": self.tally.started_us, "now_us": self.now, "width": width, **more}
        return display.screen(self.tally.progress(), self.tally.statuses, **shown)


@pytest.fixture
def busy():
    """A sweep that has found something, and compiles now."""
    script = Script()
    script.progress(ProgressKind.SWEEP_STARTED)
    script.start(ONE)
    script.trial(ONE, 63_800, default=True)
    for ns in (60_000, 70_000, 55_000, 48_300):
        script.trial(ONE, ns)
    script.trial(ONE, status=Status.COMPILE_ERROR)
    script.later(30)
    script.phase(Phase.COMPILE)
    script.later(12)
    return script


def test_80_columns_show_point_phase_pace_best_and_counts(busy):
    what, far, found = busy.screen()
    assert what[1:] == "  gemma3-27b.local.window1024/4x131072 fwd  triton  compiling 12s"
    assert far == "━╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌  6/120 configs  0.14 configs/s  eta 13m18s  42s so far"
    assert found == "best 48.3 us (triton)  1.32x the untuned config  █▆▆▄▁  5 ok  1 failed"


PHASES = {
    Phase.START: "starting",
    Phase.PREPARE: "references",
    Phase.COMPILE: "compiling",
    Phase.VALIDATE: "proving",
    Phase.MEASURE: "racing",
}


@pytest.mark.parametrize("phase", Phase)
def test_each_phase_has_its_word_and_the_time_since_it_began(phase):
    script = Script()
    script.start(ONE)
    script.later(5)
    script.phase(phase)
    script.later(3)
    assert script.screen()[0].endswith(f"{PHASES[phase]} {'8s' if phase is Phase.START else '3s'}")


def test_phases_of_finals_are_called_finals_until_the_case_ends():
    script = Script()
    script.start(ONE)
    script.progress(ProgressKind.FINALS_STARTED, ONE)
    for phase in (Phase.START, Phase.PREPARE, Phase.COMPILE, Phase.MEASURE, None):
        script.phase(phase)
    script.later(2)
    assert script.screen()[0].endswith("fwd  finals 2s")
    script.progress(ProgressKind.CASE_FINISHED, ONE)
    assert script.screen()[0].endswith("1024/4x131072 fwd  waiting 0s")
    script.start(TWO)
    assert script.screen()[0].endswith("llama3-8b/4x4k fwd  triton  references 0s")
    script.phase(Phase.COMPILE)
    assert script.screen()[0].endswith("llama3-8b/4x4k fwd  triton  compiling 0s")


def test_the_picture_moves_while_nothing_happens(busy):
    before = busy.screen()
    busy.later(0.25)
    assert busy.screen()[0][0] != before[0][0]
    busy.later(1)
    assert "compiling 13s" in busy.screen()[0]


@pytest.mark.parametrize("width", [20, 40, 60, 80, 120])
@pytest.mark.parametrize("devices", [1, 8])
def test_no_line_is_wider_than_the_terminal(busy, width, devices):
    busy.devices = tuple(f"GPU {i}" for i in range(devices))
    for place in range(1, devices):
        busy.start(TWO, place)
        busy.phase(Phase.MEASURE, place)
    lines = busy.screen(width)
    assert max(map(text_width, lines)) <= width
    assert len(lines) == devices + 2


def test_parts_go_in_the_order_that_the_page_states(busy):
    """The narrower the terminal, the fewer parts; what is gone at one width is gone at every lesser one."""
    gone = []
    for width in range(120, 30, -1):
        text = "\n".join(busy.screen(width))
        parts = {
            "curve": "▁",
            "so far": "so far",
            "kernel": "fwd  triton",
            "rate": "configs/s",
            "bar": "━",
            "ok": "5 ok",
            "best kernel": "(triton)",
            "gain": "1.32x",
            "eta": "eta",
        }
        gone += [name for name, words in parts.items() if words not in text and name not in gone]
        assert all(parts[name] not in text for name in gone)
        assert all(words in text for words in ("6/120 configs", "best 48.3 us", "1 failed", "compiling 12s"))
    for line in (["so far", "rate", "bar", "eta"], ["curve", "ok", "best kernel", "gain"]):
        assert [name for name in gone if name in line] == line[: len([n for n in gone if n in line])]


def test_several_devices_have_a_line_each_with_their_own_best():
    script = Script(devices=("GPU 0", "GPU 2"))
    script.start(ONE, 0)
    script.start(TWO, 1)
    script.trial(ONE, 1_000, default=True)
    script.trial(TWO, 7_000)
    script.trial(ONE, 900)
    script.phase(Phase.MEASURE, 1)
    _, counts, first, second = script.screen(120)
    assert "GPU 0  gemma3-27b.local.window1024/4x131072 fwd" in first
    assert "best 900 ns (triton)  1.11x" in first
    assert "GPU 2  llama3-8b/4x4k fwd  triton  racing 0s  best 7.00 us" in second
    assert counts == "3 ok  0 failed"
    script.progress(ProgressKind.CASE_RETURNED, TWO, 1)
    assert "GPU 2" not in "\n".join(script.screen(120))


def test_a_terminal_without_unicode_has_a_bar_all_the_same(busy):
    assert "\n".join(busy.screen(plain=True)).isascii()
    assert busy.screen(plain=True)[1].startswith("#...................  6/120")


def test_a_compile_only_sweep_compiles():
    script = Script(compiles_only=True)
    script.start(ONE)
    assert script.screen()[0].endswith("compiling 0s")


def test_curves_are_thinned_and_keep_their_ends():
    assert thinned([9.0, 8.0], 12) == [9.0, 8.0]
    found = thinned([float(i) for i in range(100)], 12)
    assert (len(found), found[0], found[-1]) == (12, 0.0, 99.0)
    assert display.sparkline([3, 1, 2]) == "█▁▅"
    assert display.sparkline([3]) == ""
    assert display.sparkline([2, 2]) == "▁▁"


def console(width, **more):
    return Console(file=io.StringIO(), width=width, height=24, force_terminal=True, **more)


@pytest.mark.parametrize("no_colour", ["", "1"])
def test_a_terminal_is_redrawn_without_colour(busy, monkeypatch, no_colour):
    monkeypatch.setenv("NO_COLOR", no_colour)
    monkeypatch.setattr(progress, "DRAW_EVERY_S", 3600.0)
    shown = console(80)
    with View(busy.tally, shown) as view:
        view.tick()
        busy.later(60)
        view.tick()
    text = shown.file.getvalue()
    assert "compiling 12s" in text
    assert "compiling 1m12s" in text
    assert not re.search(r"\x1b\[[0-9;]*3[0-7]m", text)


def test_nothing_is_drawn_or_written_while_a_processor_times_a_config(busy, monkeypatch, capsys):
    monkeypatch.setattr(progress, "DRAW_EVERY_S", 3600.0)
    for platform, drawn in (("cpu", False), ("cuda", True)):
        busy.platform = platform
        busy.progress(ProgressKind.SWEEP_STARTED)
        busy.phase(Phase.MEASURE)
        shown = console(80)
        with View(busy.tally, shown) as view:
            before = len(shown.file.getvalue())
            view.tick()
            assert (len(shown.file.getvalue()) > before) is drawn
        busy.phase(None)
        assert not busy.tally.is_timing_here
    capsys.readouterr()
    busy.platform = "cpu"
    busy.progress(ProgressKind.SWEEP_STARTED)
    view = View(busy.tally)
    view.add(PhaseEntered(place=0, phase=Phase.MEASURE))
    view.tick()
    assert capsys.readouterr().err == ""
    view.add(PhaseEntered(place=0, phase=None))
    assert capsys.readouterr().err


def test_a_pipe_gets_a_line_a_stage_and_one_now_and_then(capsys):
    script = Script()
    view = View(script.tally)
    script.add = view.add

    def said():
        return capsys.readouterr().err.splitlines()

    script.progress(ProgressKind.SWEEP_STARTED)
    assert said() == ["starting: 0/120 configs  0s so far  0 ok  0 failed"]
    script.start(ONE)
    assert [line.partition(":")[0] for line in said()] == ["gemma3-27b.local.window1024/4x131072 fwd  triton  starting"]
    for _ in range(40):  # quick configs: no line each
        for phase in (Phase.COMPILE, Phase.VALIDATE, Phase.MEASURE, None):
            script.later(0.01)
            script.phase(phase)
        script.trial(ONE, 1_000)
    assert said() == []
    script.later(6)
    script.phase(Phase.COMPILE)
    (line,) = said()
    assert "fwd  triton  compiling: 40/120 configs" in line
    script.later(5)
    view.tick()
    assert said() == []
    script.later(6)
    view.tick()
    (line,) = said()
    assert line.endswith("40 ok  0 failed  best 1.00 us (triton)")
    script.progress(ProgressKind.FINALS_STARTED, ONE)
    (line,) = said()
    assert line.startswith("gemma3-27b.local.window1024/4x131072 fwd  finals: 40/120")


def test_no_line_of_a_pipe_has_an_empty_label(capsys, monkeypatch, tmp_path):
    script = Script(devices=("GPU 0", "GPU 1"))
    view = View(script.tally)
    script.add = view.add
    script.progress(ProgressKind.SWEEP_STARTED)
    script.phase(Phase.PREPARE, 1)
    script.start(TWO, 1)
    script.start(ONE, 0)
    lines = capsys.readouterr().err.splitlines()
    assert lines
    assert all(re.match(r"\S", line) for line in lines)
    assert any(line.startswith("GPU 1  llama3-8b/4x4k fwd") for line in lines)


def test_events_of_many_threads_are_all_counted():
    script = Script()
    script.start(ONE)

    def work():
        for _ in range(200):
            script.tally.add(PhaseEntered(place=threading.get_ident() % 7, phase=Phase.COMPILE))
            script.trial(ONE, 1_000)
            script.tally.progress()
            sum(script.tally.counts.values())

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert script.tally.counts == {Status.OK: 800}


def test_a_sweep_tells_its_phases_cases_and_winners(tmp_path):
    from attn_tune.db import Database

    fill(tmp_path / "lab.db")
    with Database.open(tmp_path / "lab.db", read_only=True) as database:
        found = database.status().progress
    assert (found.cases, found.cases_done, found.cases_decided) == (2, 2, 2)
    assert found.configs == found.configs_done > 0
    assert found.activity == ()
