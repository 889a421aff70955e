"""The badge of a pack: the same bytes for the same pack, well-formed, and true."""

import dataclasses
import xml.etree.ElementTree as ET

import pytest

from attn_tune.reports.badge import badge
from tests.integrations.packs import V6E, pack, row

CONFIG = {"chunk_q": 64, "chunk_k": 64}
SVG = "{http://www.w3.org/2000/svg}"
PREDICTED = {"error_ppm": None, "features": None, "median_ns": None, "state": "predicted"}


def texts(svg):
    return [one.text for one in ET.fromstring(svg).iter(f"{SVG}text")]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([{}], "nvidia-h200: 1 row, 1 proven"),
        ([{}, {"direction": "bwd", "features": 0}], "nvidia-h200: 2 rows, 1 proven"),
        ([{}, {"direction": "bwd", "features": None}], "nvidia-h200: 2 rows, 2 proven"),
        ([PREDICTED], "nvidia-h200: 1 row, 0 proven"),
        ([{}, {"device": V6E} | PREDICTED], "nvidia-h200, tpu-v6e: 2 rows, 1 proven"),
    ],
)
def test_the_badge_counts_rows_and_those_that_are_proven(rows, words):
    made = pack(*(row("xla", one.pop("direction", "fwd"), CONFIG, **one) for one in map(dict, rows)))
    svg = badge(made)
    assert texts(svg) == ["attn-tune lab", words]
    root = ET.fromstring(svg)
    assert (root.get("role"), root.get("aria-label")) == ("img", f"attn-tune lab | {words}")
    assert root.find(f"{SVG}title").text == root.get("aria-label")


@pytest.mark.parametrize(("passed", "words"), [(True, "1 proven"), (False, "1 proven, gate not passed")])
def test_a_release_gate_that_was_not_passed_is_told(passed, words):
    made = pack(row("xla", "fwd", CONFIG), gate={"passed": passed, "reason": "a test"})
    svg = badge(made)
    assert texts(svg)[1] == f"nvidia-h200: 1 row, {words}"
    assert (".right{fill:#1a7f37}" in svg) is passed


def test_colours_tell_apart_all_some_and_none_and_know_dark_pages():
    cases = [({},), ({}, {"rank": 0, "device": V6E} | PREDICTED), (PREDICTED,)]
    svgs = [badge(pack(*(row("xla", "fwd", CONFIG, **one) for one in case))) for case in cases]
    right = [svg.split(".right{fill:")[1].split("}")[0] for svg in svgs]
    assert len(set(right)) == 3
    assert all("prefers-color-scheme:dark" in svg for svg in svgs)


@pytest.mark.parametrize(
    "ground", ["#32383f", "#21262d", "#1a7f37", "#15652c", "#9a6700", "#7d5300", "#59636e", "#4a525b"]
)
def test_white_text_can_be_read_on_every_ground(ground):
    made = pack(row("xla", "fwd", CONFIG))
    channels = [int(ground[n : n + 2], 16) / 255 for n in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    assert 1.05 / (luminance + 0.05) >= 4.5
    assert "fill:#fff" in badge(made)


def test_the_same_pack_gives_the_same_bytes_and_a_hostile_name_is_text():
    made = pack(row("xla", "fwd", CONFIG))
    assert badge(made) == badge(pack(row("xla", "fwd", CONFIG)))
    hostile = dataclasses.replace(made, name='<script>&"\x00\n' + "x" * 500)
    svg = badge(hostile)
    assert ET.fromstring(svg).find(f"{SVG}script") is None
    (name, _) = texts(svg)
    assert name.startswith('attn-tune <script>&"??xxx')
    assert len(name) == 60
