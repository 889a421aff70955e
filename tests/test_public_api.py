"""The public API is the recorded one."""

from tools import public_api


def test_the_public_api_is_the_recorded_one():
    difference = public_api.changes()
    assert not difference, (
        "the public API changed: say so in CHANGELOG.md, then run 'python tools/public_api.py --write'\n" + difference
    )


def test_a_changed_default_and_a_lost_parameter_are_seen(monkeypatch, tmp_path):
    recorded = public_api.RECORD.read_text()
    monkeypatch.setattr(public_api, "RECORD", tmp_path / "record.txt")
    public_api.RECORD.write_text(recorded.replace("causal: bool = False", "causal: bool = True", 1))
    assert "-    causal: bool = True," in public_api.changes()
    public_api.RECORD.write_text(recorded + "def attn_tune.lost()\n")
    assert public_api.changes().splitlines()[-1] == "-def attn_tune.lost()"
