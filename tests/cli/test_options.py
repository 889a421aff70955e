"""Values of options: durations, databases, points, kernels."""

import pytest
from typer.testing import CliRunner

from attn_tune.cli import app
from attn_tune.commands.shared import options, selection
from attn_tune.commands.shared.cases import Cases
from attn_tune.schema import UsageError
from attn_tune.tuner.plan.strategies.effort import EffortName, StrategyName


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("90s", 90), ("10m", 600), ("1.5h", 5400), (" 2m ", 120)])
def test_durations(text, seconds):
    assert options.seconds(text) == seconds


def test_strategies_and_efforts_of_options_are_those_of_the_tuner():
    assert list(options.Strategy) == list(StrategyName)
    assert list(options.Effort) == list(EffortName)


@pytest.mark.parametrize("text", ["", "m", "-5s", "1d", "10 m", "1e3"])
def test_malformed_durations_are_refused(text):
    with pytest.raises(UsageError, match="as in 10m"):
        options.seconds(text)


def test_the_database_stands_in_the_users_data_directory(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert options.default_database() == tmp_path / "attn-tune" / "lab.db"
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert options.default_database() == tmp_path / ".local/share/attn-tune/lab.db"


def test_without_a_home_there_is_no_data_directory(monkeypatch):
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.delenv("HOME", raising=False)
    with pytest.raises(UsageError, match="neither HOME nor XDG_DATA_HOME is set"):
        options.default_database()
    for words in (["doctor", "--json"], ["explain", "llama3-8b/4x4k", "--device", "nvidia-h200"]):
        answered = CliRunner().invoke(app, words, prog_name="attn-tune")
        assert answered.exit_code == 0, answered.output


def test_points_are_filtered_by_part_of_the_name_and_by_pattern():
    def names(*filters):
        return [p.name for p in Cases(grid=["gemma3-27b"], point=filters).points()]

    assert len(names()) == 6
    assert names("local") == [n for n in names() if ".local/" in n]
    assert names("*/4x4k") == ["gemma3-27b.global/4x4k", "gemma3-27b.local/4x4k"]
    assert names("2x8k", "8x2k") == [n for n in names() if n.endswith(("2x8k", "8x2k"))]
    with pytest.raises(UsageError, match=r"passes the filters; it has gemma3-27b\.global/8x2k"):
        names("nothing")
    with pytest.raises(UsageError, match=r"passes the filters; did you mean 'gemma3-27b\.local/4x4k'"):
        names("gemma3-27b.locl/4x4k")


@pytest.mark.parametrize("grids", [["packed"], ["packed", "llama3-8b"]])
def test_each_of_several_lengths_chooses_a_point(grids):
    assert len(Cases(grid=grids, lengths=["1x8k,1x16k"]).points()) == 4 + 2 * (len(grids) > 1)
    with pytest.raises(UsageError, match="no lengths match nosuch; groups: train"):
        Cases(grid=grids, lengths=["1x8k", "nosuch"]).points()


def test_an_op_that_no_point_has_is_told_which_there_are():
    with pytest.raises(UsageError, match="no point of the grid is of op gla; it has flash_attention"):
        Cases(grid=["packed"], op=["gla"]).points()


def test_a_grid_is_needed():
    with pytest.raises(UsageError, match="--grid"):
        Cases().points()


def test_kernels_go_by_name_or_by_op_and_name():
    by_name = selection.kernels(["xla"])
    assert "flash_attention/xla" in [spec.id for spec in by_name]
    assert [s.id for s in selection.kernels(["flash_attention/xla"])] == ["flash_attention/xla"]
    with pytest.raises(UsageError, match=r"unknown kernel 'xlaa'; did you mean 'xla'\?$"):
        selection.kernels(["xlaa"])
    with pytest.raises(UsageError, match="unknown op 'flash'"):
        selection.kernels(None, ["flash"])


@pytest.mark.parametrize("text", ["llama3-8b/4x4k", "gemma2-9b.local/8x2k", "cpu-smoke.gpt-oss-local/1x128"])
def test_a_point_is_found_by_name_and_by_signature(text):
    point = selection.signature(text)
    assert selection.signature(point.signature.text).signature == point.signature


def test_unknown_points_are_refused_with_a_way_out():
    with pytest.raises(UsageError, match=r"unknown grid point 'llama3-8b/4x4K'; did you mean 'llama3-8b/4x4k'[^?]*\?$"):
        selection.signature("llama3-8b/4x4K")
    with pytest.raises(UsageError, match=r"did you mean 'llama3-8b/4x4k'[^?]*\? --grid FILE"):
        selection.signature("lama3-8b/4x4k")
    with pytest.raises(UsageError, match=r"did you mean 'cpu-smoke.llama3/1x128'\?"):
        selection.signature("llama3/1x128")
    with pytest.raises(UsageError, match=r"unknown grid point 'zzz'; --grid FILE knows .*'attn-tune grids GRID' lists"):
        selection.signature("zzz")


def test_names_of_points_cover_every_length():
    names = selection.point_names()
    text = selection.signature("llama3-8b/1x128k").signature.text
    assert names[text].startswith("llama3-8b/1x128k")


@pytest.mark.parametrize("op", ["flash_attention", "gla"])
def test_names_of_the_points_of_stored_problems_are_those_among_all_points(op):
    every = {text: name for text, name in selection.point_names().items() if text.startswith(f"{op}/")}
    assert every
    found = selection.point_names(stored=[next(iter(every)), "not_installed/v1 t=1"])
    assert {text: name for text, name in found.items() if text.startswith(f"{op}/")} == every
    assert len(found) < len(selection.point_names())
