"""The page in a browser: no request, no complaint, the filter and the choice of knobs work."""

import dataclasses
import importlib.util
import math
import os
from pathlib import Path

import pytest

from attn_tune.reports.page.interactive import begin_library
from attn_tune.reports.page.page import INTERACTIVE_LIMIT, LIMIT, render
from attn_tune.reports.page.parts import landscape
from attn_tune.reports.page.searches import searches
from tests.reports.page import labs
from tests.reports.page.browser import CHROMIUM, Browser

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium, chromium-browser or google-chrome is installed"),
]

SHOWN = "[...document.querySelectorAll('{}')].filter(e => !e.hidden && !e.closest('[hidden]')).map(e => e.textContent)"
ROWS = SHOWN.format("#speedups .row .name b")


@pytest.fixture(scope="module")
def browser():
    with Browser() as one:
        yield one


@pytest.fixture
def page(data, tmp_path):
    path = tmp_path / "page.html"
    path.write_text(render(data), encoding="utf-8")
    return path


def choose(browser, name, value):
    """Set a control of the filter, as a user does."""
    browser.value(
        f"{{ const e = document.querySelector('form.filters').elements.{name}; e.value = {value!r};"
        " e.dispatchEvent(new Event('input', {bubbles: true})); }"
    )


@pytest.mark.parametrize("width", [1200, 400])
def test_the_page_loads_alone_without_a_complaint_and_fits(browser, page, width):
    browser.open(page, width)
    assert browser.value("document.querySelectorAll('section').length") == 10
    assert browser.requests() == [page.as_uri()]
    assert browser.complaints() == []
    assert browser.value("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("width", [1200, 400])
def test_the_recorded_page_of_an_h100_loads_and_filters(browser, width):
    path = Path(__file__).parents[3] / "docs/assets/h100-report.html"
    assert path.stat().st_size <= LIMIT
    browser.open(path, width)
    assert browser.requests() == [path.as_uri()]
    assert browser.complaints() == []
    assert browser.value("document.documentElement.scrollWidth") <= width
    everything = browser.value(ROWS)
    assert len(everything) >= 10
    assert browser.value("document.querySelector('form.filters').elements.op.options.length") > 5
    choose(browser, "point", "ragged")
    assert browser.value(ROWS) == [name for name in everything if "ragged" in name]


@pytest.mark.parametrize("name", ["nvidia-h200", "flash_attention", "not_installed", "own"])
def test_a_page_with_a_name_of_120_letters_fits_400_pixels(browser, data, tmp_path, name):
    text = render(data)
    assert name in text
    path = tmp_path / "page.html"
    path.write_text(text.replace(name, "x" * 120), encoding="utf-8")
    browser.open(path, 400)
    assert browser.value("document.documentElement.scrollWidth") <= 400


# The words of names that stand on several lines: those between two places where a line may end.
BROKEN = """[...document.querySelectorAll('th[scope=row], .name b, h3 b')].flatMap(name => {
  const found = [];
  for (const node of name.childNodes) for (const word of (node.data || '').matchAll(/[^-\\s]+-?/g)) {
    const range = document.createRange();
    range.setStart(node, word.index);
    range.setEnd(node, word.index + word[0].length);
    if (new Set([...range.getClientRects()].map(r => Math.round(r.top))).size > 1) found.push(word[0]);
  }
  return found;
})"""


def test_names_on_a_narrow_page_break_between_their_words(browser, data, tmp_path):
    names = {
        labs.MAIN.text: "deepseek-v3.2-serving.heads128/128x1x64k",
        labs.TIED.text: "llama3-8b-append.page64/256x256",
    }
    path = tmp_path / "page.html"
    path.write_text(render(dataclasses.replace(data, names=names)), encoding="utf-8")
    browser.open(path, 400)
    assert browser.value("document.body.textContent").count("heads128/128x1x64k") > 5
    assert browser.value(BROKEN) == []
    browser.value("document.querySelectorAll('.name b').forEach(b => { b.style.cssText = 'display:block;width:3em' })")
    assert browser.value(BROKEN) != [], "the test sees a word that is broken"


def test_the_page_cannot_fetch_even_when_told_to(browser, page):
    browser.open(page)
    said = browser.value("fetch('https://example.org/').then(() => 'fetched', () => 'refused')")
    assert said == "refused"
    assert any("Content Security Policy" in str(one) for one in browser.complaints())


def test_the_filter_hides_what_was_not_asked_for(browser, page, data):
    browser.open(page)
    everything = browser.value(ROWS)
    assert len(everything) == len(data.winners)
    choose(browser, "op", str(data.ops.index("not_installed")))
    assert browser.value(ROWS) == [labs.FOREIGN.text]
    assert "items shown" in browser.value("document.querySelector('form.filters output').value")
    choose(browser, "op", "")
    choose(browser, "point", "MODEL 512")
    assert browser.value(ROWS) == ["model/512"]
    assert browser.value(SHOWN.format("#coverage tbody tr th")) == ["model/512"]
    browser.value("document.querySelector('form.filters').reset()")
    assert browser.value(f"new Promise(done => setTimeout(() => done({ROWS})))") == everything
    choose(browser, "device", str(data.devices.index("tpu-v6e")))
    assert browser.value(ROWS) == []


def test_a_landscape_of_other_knobs_has_the_numbers_of_the_search(browser, page, data):
    browser.open(page)
    main = next(s for s in searches(data.trials) if s.signature == labs.MAIN.text)
    x, y = main.knobs.index("num_stages"), main.knobs.index("num_warps")
    card = (
        "[...document.querySelectorAll('[data-s]')].find(c => c.querySelector('h3').textContent.includes('model/4k'))"
    )
    shown = browser.value(
        f"{{ const card = {card}; const [x, y] = card.querySelectorAll('select'); x.value = {x}; y.value = {y};"
        " x.dispatchEvent(new Event('input')); y.dispatchEvent(new Event('input'));"
        " [...card.querySelectorAll('.v')].map(e => e.textContent) }"
    )
    cells = landscape.grid(main, x, y)
    unit, _ = landscape.unit_of(main.best)
    times = [cells[i, j][0] for j in range(2) for i in range(2)]
    assert all(map(math.isfinite, times))
    # The embedded times are rounded to a thousandth of the best.
    assert [float(text) for text in shown] == pytest.approx([time / unit for time in times], rel=6e-3)


def test_what_is_drawn_by_a_script_is_what_was_drawn_before(browser, page):
    browser.open(page)
    texts = "[...card.querySelectorAll('.map text, .map .axes')].map(e => e.textContent)"
    before, after = browser.value(
        f"{{ const card = document.querySelector('[data-s]'); const before = {texts};"
        f" card.querySelector('select').dispatchEvent(new Event('input')); [before, {texts}] }}"
    )
    assert sorted(after) == sorted(before)


@pytest.mark.skipif(importlib.util.find_spec("vl_convert") is None, reason="the extra 'report' is not installed")
def test_the_interactive_page_draws_and_follows_a_choice_without_a_request(browser, data, tmp_path):
    path = tmp_path / "page.html"
    with begin_library({**os.environ, "XDG_CACHE_HOME": str(tmp_path)}) as library:
        text = render(data, library=library)
    assert len(text.encode()) < INTERACTIVE_LIMIT
    path.write_text(text, encoding="utf-8")
    browser.open(path)
    assert browser.value("attnTuneReady.then(() => document.querySelectorAll('#vega svg').length)") == 1
    drawn = "document.querySelectorAll('#vega .mark-rect.role-mark path, #vega .mark-rect path').length"
    assert browser.value(drawn) > 0
    titles = "[...document.querySelectorAll('#vega svg text')].map(e => e.textContent)"
    assert browser.value(titles).count("num_warps") == 1
    # A choice is drawn a moment later.
    browser.value(
        "new Promise(done => { const x = document.querySelectorAll('#vega select')[1];"
        " x.value = [...x.options].findIndex(o => o.textContent === 'num_warps'); x.dispatchEvent(new Event('input'));"
        f" const look = () => {titles}.filter(t => t === 'num_warps').length === 2 ? done() : setTimeout(look, 20);"
        " look(); })"
    )
    assert browser.requests() == [path.as_uri()]
    assert browser.complaints() == []
    browser.open(path, 400)
    browser.value("attnTuneReady.then(() => 0)")
    assert browser.value("document.documentElement.scrollWidth") <= 400
