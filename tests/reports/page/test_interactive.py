"""The library of ``--interactive``: made once, kept, and made again where what was kept is not what was made."""

import importlib.metadata
import os

import pytest
from typer.testing import CliRunner

from attn_tune.cli import app
from attn_tune.reports.page.interactive import begin_library
from attn_tune.schema import UsageError
from tests.reports.page.test_page import Reader

BUNDLE = "window.vegaEmbed = () => '</script><b>é';"
SAFE = "window.vegaEmbed = () => '<\\/script><b>é';"


@pytest.fixture
def environ(tmp_path, monkeypatch):
    """The environment of a user who has an extra that makes ``BUNDLE`` and notes each time that it does."""
    site = tmp_path / "site"
    (site / "vl_convert_python-1.2.3.dist-info").mkdir(parents=True)
    (site / "vl_convert_python-1.2.3.dist-info/METADATA").write_text("Name: vl-convert-python\nVersion: 1.2.3\n")
    (site / "vl_convert.py").write_text(
        "def javascript_bundle(snippet):\n"
        f"    open({str(tmp_path / 'made')!r}, 'a').write('x')\n"
        f"    return {BUNDLE!r}\n"
    )
    monkeypatch.syspath_prepend(site)
    path = os.pathsep.join((str(site), os.environ.get("PYTHONPATH", "")))
    monkeypatch.setenv("PYTHONPATH", path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return dict(os.environ)


def text_of(environ):
    with begin_library(environ) as library:
        return library()


def test_the_library_is_made_once_and_made_again_where_the_kept_one_is_damaged(environ, tmp_path):
    assert text_of(environ) == text_of(environ) == SAFE
    assert (tmp_path / "made").read_text() == "x"
    (kept,) = (tmp_path / "cache/attn-tune").iterdir()
    assert "1.2.3" in kept.name
    whole = kept.read_bytes()
    for number, damaged in enumerate((b"", whole[:-1], BUNDLE.encode(), b"\xff" + whole), 2):
        kept.write_bytes(damaged)
        assert text_of(environ) == SAFE
        assert kept.read_bytes() == whole
        assert (tmp_path / "made").read_text() == "x" * number


def test_the_library_is_made_where_nothing_can_be_kept(environ, tmp_path):
    (tmp_path / "cache").write_text("a file")
    assert text_of(environ) == SAFE
    assert text_of({name: value for name, value in environ.items() if name not in ("HOME", "XDG_CACHE_HOME")}) == SAFE


def test_a_library_that_cannot_be_made_is_an_error_with_its_reason_and_nothing_is_kept(environ, tmp_path):
    (tmp_path / "site/vl_convert.py").write_text("raise ImportError('another libc')\n")
    with pytest.raises(UsageError, match="another libc"):
        text_of(environ)
    assert not (tmp_path / "cache").exists()


@pytest.mark.usefixtures("environ")
def test_the_library_is_inlined_in_the_page_and_cannot_leave_its_element(lab, tmp_path):
    path = tmp_path / "page.html"
    words = ["report", "--db", str(lab), "--html", str(path), "--interactive"]
    assert CliRunner().invoke(app, words).exit_code == 0
    reader = Reader(path.read_text())
    assert SAFE in reader.scripts
    assert any(e.get("id") == "vega" for _, e in reader.elements)


def test_without_the_library_the_error_says_how_to_get_it(lab, tmp_path, monkeypatch):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    words = ["report", "--db", str(lab), "--html", str(tmp_path / "page.html"), "--interactive"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 2
    assert "attn-tune[report]" in result.stderr
    assert not list(tmp_path.iterdir())
