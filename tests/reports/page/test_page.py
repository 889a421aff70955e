"""The whole page: it asks for nothing, says what it left out, and is the same for the same database."""

import base64
import hashlib
import html.parser
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from attn_tune.cli import app
from attn_tune.db import Database, import_pack
from attn_tune.reports.page.page import INTERACTIVE_LIMIT, LIMIT, render
from attn_tune.schema import Status
from tests.db.facts import make_signature, make_trial
from tests.reports.page import labs

ANCHORS = (
    "coverage",
    "speedups",
    "kernels",
    "landscape",
    "roofline",
    "search",
    "knobs",
    "failures",
    "noise",
    "evidence",
)


def run(*words):
    return CliRunner().invoke(app, ["report", *(str(word) for word in words)])


@pytest.fixture(scope="module")
def page(data):
    return render(data)


class Reader(html.parser.HTMLParser):
    """Elements in order with their attributes, and the texts of scripts; unclosed elements are a fault."""

    VOID = ("meta", "input", "br", "col")

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.elements, self.scripts, self._open = [], [], []
        self.feed(text)
        assert not self._open

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        if self._open and self._open[-1] == "script":
            self.scripts.append(data)


def test_every_part_has_an_anchor_a_question_and_a_link(page):
    ids = [e["id"] for _, e in Reader(page).elements if "id" in e]
    assert len(ids) == len(set(ids))
    assert set(ANCHORS) <= set(ids)
    links = {e["href"] for tag, e in Reader(page).elements if tag == "a"}
    assert {f"#{anchor}" for anchor in ANCHORS} <= links
    assert all(link.startswith("#") and link[1:] in ids for link in links)
    titles = re.findall(r"<h2[^>]*>.*?</span>(.*?)</h2>", page)
    assert len(titles) == len(ANCHORS)
    assert all(title.endswith("?") for title in titles)


def test_the_page_asks_for_nothing_and_runs_only_its_own_scripts(page):
    reader = Reader(page)
    (policy,) = [e["content"] for tag, e in reader.elements if e.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none';")
    assert "http" not in policy
    assert "unsafe-eval" not in policy
    programs = [s for s in reader.scripts if not s.startswith("{")]
    hashes = {base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in programs}
    assert set(re.findall(r"'sha256-([^']+)'", policy)) == hashes
    for _, attributes in reader.elements:
        assert not {"src", "srcset", "action", "onclick", "onload"} & set(attributes)
    assert "@import" not in page
    assert not re.search(r"url\((?!#f-)", page)


def test_texts_of_the_database_are_escaped(page):
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(&#x27;x&#x27;)&lt;/script&gt; &amp; &quot;quoted&quot;" in page


def test_the_names_of_points_and_knobs_are_escaped(tmp_path):
    path = labs.fill(
        tmp_path / "lab.db",
        [
            make_trial({"</script><b>": n, "w": m}, (1000 + n + m,), is_heuristic=n == m == 0, started_us=n)
            for n in range(2)
            for m in range(2)
        ],
    )
    signature = make_signature()
    text = render(labs.data_of(path, {signature.text: "</script><img src=x onerror=alert(1)>"}))
    assert "<img" not in text
    reader = Reader(text)
    (stored,) = [json.loads(s) for s in reader.scripts if s.startswith("{")]
    assert "</script><b>" in stored["searches"][0]["k"]
    assert stored["searches"][0]["n"].startswith("</script><img")


@pytest.mark.slow
def test_the_same_database_gives_the_same_bytes_in_any_process(lab, tmp_path):
    found = []
    for seed in ("0", "1234"):
        path = tmp_path / f"{seed}.html"
        command = [sys.executable, "-m", "attn_tune", "report", "--db", str(lab), "--html", str(path)]
        subprocess.run(command, check=True, env={**os.environ, "PYTHONHASHSEED": seed, "TZ": f"Etc/GMT+{len(seed)}"})
        found.append(path.read_bytes())
    assert found[0] == found[1]


def many_trials(problems, configs=4):
    """A search of each of many problems, with long reasons among its failures."""
    for place in range(problems):
        signature = make_signature(q_len=128 + 8 * place, kv_len=128 + 8 * place)
        for n in range(configs):
            status = Status.OK if n % 3 != 2 else Status.COMPILE_ERROR
            yield make_trial(
                {"rows": 16 << n % 3, "columns": 16 << n // 3, "note": f"value {n % 2}"},
                (1000 * (n + 2), 1010 * (n + 2), 990 * (n + 2)),
                signature=signature,
                status=status,
                reason="" if status is Status.OK else f"{place} {'<' * 900}",
                is_heuristic=n == 0,
                started_us=1_700_000_000_000_000 + place * 100 + n,
                ended_us=1_700_000_000_000_100 + place * 100 + n,
                run_ms=1.0,
            )


@pytest.mark.slow
def test_size_stays_within_the_limit_and_time_grows_no_faster_than_trials(tmp_path):
    took, sizes = [], []
    for problems in (100, 400):
        data = labs.data_of(labs.fill(tmp_path / f"{problems}.db", many_trials(problems)))
        begun = time.process_time()
        page = render(data)
        took.append(time.process_time() - begun)
        sizes.append(len(page.encode()))
    assert max(sizes) < LIMIT
    assert sizes[1] > 0.8 * LIMIT  # what some parts do not need goes to others
    assert INTERACTIVE_LIMIT - 1_000_000 > LIMIT
    assert took[1] < 8 * took[0]
    left = re.search(r"Left out to keep the page small: (\d+) \(problems of the coverage matrix\)", page)
    assert left
    shown = len(re.findall(r'<th scope="row"', page))
    assert int(left[1]) + shown == 400
    assert "--point" in page


def only(status, **changes):
    return [make_trial({"rows": n}, status=status, started_us=n, **changes) for n in range(3)]


@pytest.mark.parametrize("status", [Status.CRASHED, Status.UNSUPPORTED, Status.UNPROVEN, Status.COMPILED])
def test_a_database_of_one_kind_of_trial_has_a_page(tmp_path, status):
    text = render(labs.data_of(labs.fill(tmp_path / "lab.db", only(status, reason=f"because {status}"))))
    assert all(f'id="{anchor}"' in text for anchor in ANCHORS)
    Reader(text)


def test_a_database_of_an_op_that_is_not_installed_has_a_page(tmp_path):
    found = [one for one in labs.trials() if one.kernel.startswith("not_installed/")]
    text = render(labs.data_of(labs.fill(tmp_path / "lab.db", found)))
    assert "No measured winner is of an op that is installed here." in text
    Reader(text)


def test_a_database_of_predictions_alone_has_a_page(tmp_path):
    found = [one for one in labs.trials() if one.status is Status.PREDICTED]
    data = labs.data_of(labs.fill(tmp_path / "lab.db", found))
    assert set(data.cells["state"]) == {"predicted", "untuned"}  # no direction but the first was compiled
    text = render(data)
    assert "predicted, not run" in text
    assert "No problem has a decision." in text


def test_rows_of_an_imported_pack_have_a_page(tmp_path):
    import attn_tune

    pack = Path(attn_tune.__file__).parent / "packs" / "shipped" / "tpu-v6e"
    with Database.open(tmp_path / "lab.db", create=True) as database:
        assert import_pack(database, pack).added
    data = labs.data_of(tmp_path / "lab.db")
    assert "imported" in set(data.cells["state"])
    assert all(f'id="{anchor}"' in render(data) for anchor in ANCHORS)


def test_without_scripts_everything_is_visible_but_what_needs_them(page):
    hidden = [
        attributes.get("class") or attributes.get("id")
        for _, attributes in Reader(page).elements
        if "hidden" in attributes
    ]
    assert hidden == ["filters", "card"]
    assert 'id="explorer"' in page


# --- The command ---


def test_the_command_writes_the_page_and_replaces_it_only_when_told(lab, tmp_path):
    path = tmp_path / "page.html"
    assert run("--db", lab, "--html", path).exit_code == 0
    first = path.read_bytes()
    again = run("--db", lab, "--html", path)
    assert again.exit_code == 4
    assert "--overwrite" in again.stderr
    done = run("--db", lab, "--html", path, "--overwrite", "--json")
    assert json.loads(done.stdout)["bytes"] == len(first)
    assert path.read_bytes() == first
    assert run("--db", lab, "--html", "-").stdout_bytes == first


def test_the_folder_of_a_page_is_made_and_no_database_is_overwritten(lab, tmp_path):
    assert run("--db", lab, "--html", tmp_path / "no" / "page.html").exit_code == 0
    before = lab.read_bytes()
    refused = run("--db", lab, "--html", lab, "--overwrite")
    assert (refused.exit_code, "is a database" in refused.stderr) == (4, True)
    assert lab.read_bytes() == before


def test_a_page_on_stdout_stands_alone_whatever_a_package_prints(lab, monkeypatch):
    from attn_tune.commands.shared import selection

    names = selection.point_names
    monkeypatch.setattr(selection, "point_names", lambda *grids: print("a package talks") or names(*grids))
    result = run("--db", lab, "--html", "-")
    assert result.stdout_bytes.startswith(b"<!doctype html>")
    assert "a package talks" in result.stderr


def test_an_empty_database_is_an_error(tmp_path):
    with Database.open(tmp_path / "empty.db", create=True):
        pass
    empty = run("--db", tmp_path / "empty.db", "--html", tmp_path / "page.html")
    assert empty.exit_code == 3
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize(
    "words",
    [
        ["--interactive"],
        ["--overwrite"],
        ["--html", "x", "--section", "summary"],
        ["--html", "-", "--json"],
        ["--html", "x", "-f", "csv"],
    ],
)
def test_options_that_contradict_one_another_are_refused(lab, words):
    assert run("--db", lab, *words).exit_code == 2


def test_a_narrower_page_holds_only_what_was_asked_for(lab, tmp_path):
    path = tmp_path / "page.html"
    assert run("--db", lab, "--html", path, "--op", "not_installed").exit_code == 0
    text = path.read_text()
    assert "not_installed" in text
    assert "flash_attention" not in text
