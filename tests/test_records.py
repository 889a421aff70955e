"""Files, commands and sizes that pages and records name exist and are as they say."""

import json
import re
from pathlib import Path

from tests.test_docs import calls, text

ROOT = Path(__file__).resolve().parent.parent
# Commands of before, which a record says how to call today.
RENAMED = {"audit"}


def test_the_size_of_a_trial_is_the_recorded_one():
    record = json.loads((ROOT / "benchmarks/results/cpu/lab_scale_100k.json").read_text())
    for page in ("database.md", "costs.md"):
        (size,) = re.findall(r"some (\d+) bytes a trial", text(page)) or re.findall(
            r"trial takes some (\d+)", text(page)
        )
        assert abs(int(size) / record["bytes_per_trial"] - 1) < 0.02


def test_the_first_lines_of_the_readme_and_of_make_say_where_the_command_is():
    readme, make = text("README.md"), (ROOT / "Makefile").read_text()
    assert readme.index(". .venv/bin/activate") < readme.index("\nattn-tune ")
    recipe = make.split("\nsweep: ")[1].split("\n\n")[0]
    assert recipe.splitlines()[-1].endswith('. $(BIN)/activate"')


def test_every_program_that_a_record_names_exists():
    for page in (ROOT / "benchmarks" / "results").rglob("README.md"):
        for name, rest, is_quoted in calls(page.read_text()):
            assert name or not is_quoted or rest[0].startswith("-") or rest[0] in RENAMED, (page, rest)
        for path in re.findall(r"\battn_tune/packs/[\w/-]+", page.read_text()):
            assert (ROOT / path).exists(), (page, path)


def test_the_report_to_xla_holds_the_script_that_made_its_record():
    page = (ROOT / "docs/upstream/xla-calls-in-loops.md").read_text()
    script = (ROOT / "benchmarks/xla_calls_in_loops.py").read_text()
    assert f"```python\n{script[script.index('import os') :]}```" in page
    assert (ROOT / "benchmarks/results/h200/xla_calls_in_loops.txt").read_text() in page
