"""What is in quarantine never runs, whoever says it should."""

import json
import os

import pytest

from attn_tune.kernels.dispatch import choose, explain, lookup
from attn_tune.kernels.pinning import pin
from attn_tune.runtime.overlay import reload, use_pack
from attn_tune.schema import UnsupportedError
from tests.kernels.dispatch.toy_op import Config, pack, problem
from tests.runtime.packbuilder import H200, OP, row, sig


@pytest.fixture
def quarantine(monkeypatch, tmp_path):
    """Puts entries, or a raw text, in force."""

    def put(*entries, text=None):
        path = tmp_path / "quarantine.json"
        path.write_text(json.dumps({"format": 1, "entries": entries}) if text is None else text)
        monkeypatch.setenv("ATTN_TUNE_QUARANTINE", str(path))
        reload()

    return put


def block(t=1024, device=H200, **more):
    with use_pack(pack(row(sig(1024), 64), row(sig(1024), 4, kernel="beta", rank=1))):
        answer = lookup(OP, sig(t), device=device, **more)
    return answer.kernel, answer.config["block"]


@pytest.mark.parametrize(
    ("entry", "is_hit"),
    [
        ({"config": {"block": 64}}, True),
        ({"kernel": "alpha"}, True),
        ({"op": OP, "direction": "fwd", "device": "sm_90", "config": {"block": 64}}, True),
        ({"device": "nvidia-h200", "config": {"block": 64}, "signature": {"t": 1024}}, True),
        # A field at its default is a field too.
        ({"config": {"block": 64}, "signature": {"pages": 0, "left": None}}, True),
        ({"config": {"block": 64}, "signature": {"t": 1025}}, False),
        ({"config": {"block": 64}, "direction": "bwd"}, False),
        ({"config": {"block": 64}, "device": "sm_100"}, False),
        ({"config": {"block": 64, "warps": 4}}, False),
        ({"op": "other"}, False),
    ],
)
def test_what_an_entry_matches(quarantine, entry, is_hit):
    quarantine({**entry, "reason": "wrong dq"})
    assert block() == (("beta", 4) if is_hit else ("alpha", 64))


def test_pins_heuristics_and_explicit_configs_too(quarantine):
    quarantine(
        {"config": {"block": 5}, "reason": "hangs"},
        {"kernel": "alpha", "config": {"block": 8}, "reason": "wrong"},
    )
    with pin(OP, "alpha", {"block": 5}):
        answer = lookup(OP, sig(7), device=H200)
    # alpha's heuristic config is in quarantine as well: the next kernel's.
    assert (answer.kernel, answer.is_miss) == ("beta", True)
    path = os.environ["ATTN_TUNE_QUARANTINE"]
    assert [r.reason for r in answer.rejected] == [
        f"in quarantine: hangs ({path})",
        f"in quarantine: wrong ({path})",
    ]
    with pytest.raises(UnsupportedError, match="hangs"):
        choose(OP, "fwd", problem(sig(7)), device=H200, kernel="alpha", config=Config(block=5))
    with pytest.raises(UnsupportedError, match="quarantine"):
        lookup(OP, sig(7), "bwd", device=H200)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"format": 2, "entries": []}',
        '{"format": 1}',
        '{"format": 1, "entries": [{"config": {}}]}',
        '{"format": 1, "entries": [{"reason": "x", "colour": "green"}]}',
        '{"format": 1, "entries": [{"reason": "x", "config": 3}]}',
        '{"format": 1, "entries": [], "entries": []}',
        '{"format": 1, "entries": [{"reason": "x", "op": 3}]}',
    ],
)
def test_a_list_that_cannot_be_read_puts_all_that_is_stored_in_quarantine(quarantine, text):
    quarantine(text=text)
    assert block() == ("alpha", 8)
    with use_pack(pack(row(sig(1024), 64))):
        assert "quarantine list" in str(explain(OP, sig(1024), device=H200))


def test_a_named_list_that_is_gone_counts_as_unreadable(monkeypatch, tmp_path):
    monkeypatch.setenv("ATTN_TUNE_QUARANTINE", str(tmp_path / "gone.json"))
    reload()
    assert block() == ("alpha", 8)


def test_the_users_own_list_is_found(tmp_path):
    folder = tmp_path / "data" / "attn-tune"
    folder.mkdir(parents=True)
    entry = {"config": {"block": 64}, "reason": "mine"}
    (folder / "quarantine.json").write_text(json.dumps({"format": 1, "entries": [entry]}))
    reload()
    assert block() == ("beta", 4)
