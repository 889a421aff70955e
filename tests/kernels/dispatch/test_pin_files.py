"""Pins in files: before all packs, after those in the code; a file that is broken pins nothing and stops nothing."""

import json
import logging
from concurrent.futures import ThreadPoolExecutor

import pytest

from attn_tune.kernels.dispatch import explain, lookup
from attn_tune.kernels.pinning import make_pin, pin
from attn_tune.runtime.overlay import current_view, reload, use_pack
from attn_tune.runtime.pin_files import change_pins, read_pins
from attn_tune.runtime.statement import statement_of
from attn_tune.schema import IntegrityError, StorageError
from tests.kernels.dispatch.toy_op import pack
from tests.runtime.packbuilder import H200, OP, row, sig

ONE = {"op": OP, "direction": "fwd", "kernel": "alpha", "config": {"block": 5}}


@pytest.fixture
def pins(monkeypatch, tmp_path):
    """Puts pins, or a raw text, in force."""

    def put(*items, text=None):
        path = tmp_path / "pins.json"
        path.write_text(json.dumps({"format": 1, "pins": items}) if text is None else text)
        monkeypatch.setenv("ATTN_TUNE_PINS", str(path))
        reload()

    return put


def block(t=1024):
    return lookup(OP, sig(t), device=H200).config["block"]


def test_a_pin_in_a_file_goes_before_packs_and_after_the_code(pins):
    pins(ONE)
    with use_pack(pack(row(sig(1024), 64))):
        answer = lookup(OP, sig(1024), device=H200)
        assert (answer.rung, answer.config) == ("pinned", {"block": 5})
        assert "pins.json" in answer.source
        with pin(OP, "alpha", {"block": 6}):
            assert block() == 6


@pytest.mark.parametrize(
    ("more", "is_hit"),
    [
        ({"device": "nvidia-h200"}, True),
        ({"device": "sm_90", "signature": sig(1024)}, True),
        ({"device": "sm_100"}, False),
        ({"signature": sig(2048)}, False),
        ({"direction": "bwd"}, False),
        # What cannot run falls through to the packs.
        ({"config": {"block": 5000}}, False),
        ({"config": {"blocks": 5}}, False),
        ({"kernel": "gone"}, False),
    ],
)
def test_what_a_pin_speaks_of(pins, more, is_hit):
    pins({**ONE, **more})
    with use_pack(pack(row(sig(1024), 64))):
        assert block() == (5 if is_hit else 64)


def test_quarantine_goes_before_pins(pins, monkeypatch, tmp_path):
    path = tmp_path / "bad.json"
    path.write_text('{"format": 1, "entries": [{"config": {"block": 5}, "reason": "hangs"}]}')
    monkeypatch.setenv("ATTN_TUNE_QUARANTINE", str(path))
    pins(ONE)
    assert block() == 8


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"format": 2, "pins": []}',
        '{"format": 1}',
        json.dumps({"format": 1, "pins": [{**ONE, "colour": "red"}]}),
        json.dumps({"format": 1, "pins": [{**ONE, "config": 3}]}),
        json.dumps({"format": 1, "pins": [{**ONE, "kernel": ""}]}),
    ],
)
def test_a_broken_file_is_ignored_with_a_warning(pins, text, caplog, tmp_path):
    with caplog.at_level(logging.WARNING, "attn_tune"):
        pins(text=text)
    assert "pins.json" in caplog.text
    with use_pack(pack(row(sig(1024), 64))):
        assert block() == 64
        assert "pins.json" in str(explain(OP, sig(1024), device=H200))
    with pytest.raises(IntegrityError):
        read_pins(tmp_path / "pins.json")
    with pytest.raises(IntegrityError):
        change_pins(tmp_path / "pins.json", lambda before: before)


def test_processes_compare_what_is_pinned_and_not_where_the_file_is(pins):
    pins(ONE)
    said = statement_of(current_view())["pin 1"]
    assert said == f'pin of {OP}.fwd to alpha {{"block":5}}'
    assert reload() is False


def test_many_writers_lose_no_pin(tmp_path):
    path = tmp_path / "folder" / "pins.json"

    def add(n):
        made = make_pin(OP, "alpha", {"block": n}, "fwd", problem=sig(n))
        change_pins(path, lambda before: [*before, made])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add, range(1, 41)))
    assert {p.config["block"] for p in read_pins(path)} == set(range(1, 41))
    assert [p.name for p in path.parent.iterdir() if p.suffix not in (".json", ".lock")] == []
    with pytest.raises(StorageError, match="cannot be read"):
        read_pins(tmp_path / "nowhere.json")
