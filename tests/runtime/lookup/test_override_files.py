"""Files of overrides: found, read, changed by many at once, and broken."""

import json
import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from attn_tune.packs.override_files import change_overrides, read_overrides
from attn_tune.runtime.active.layers import reload, use_overrides, use_pack
from attn_tune.runtime.lookup.dispatch import explain, lookup
from attn_tune.runtime.overrides.active import user_file, way_out
from attn_tune.runtime.overrides.entries import make_entry
from attn_tune.schema import IntegrityError, LockfileError, StorageError
from tests.runtime.lookup.toy_op import pack
from tests.runtime.packbuilder import H200, OP, row, sig

USE = {"op": OP, "direction": "fwd", "kernel": "alpha", "config": {"block": 5}}
NEVER = {"config": {"block": 64}, "reason": "hangs"}


def block():
    with use_pack(pack(row(sig(1024), 64))):
        return lookup(OP, sig(1024), device=H200).config["block"]


def own_file(tmp_path):
    path = Path(user_file({"XDG_CONFIG_HOME": str(tmp_path / "config")}))
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


UNREADABLE = {
    "": "not JSON",
    "[]": "not of format 1",
    '{"format": 2}': "not of format 1",
    '{"format": true}': "not of format 1",
    '{"format": 1.0}': "not of format 1",
    '{"format": 1, "pins": []}': "unknown part 'pins'; known: format, frozen, never, only, use",
    '{"format": 1, "use": {}}': "'use' must be a JSON list",
    '{"format": 1, "only": 1}': "'only' must be a JSON bool",
    '{"format": 1, "never": [], "never": []}': "appears twice",
}
BAD_ENTRIES = [
    ("use", {**USE, "colour": "red"}, "use entry 2 has the unknown field 'colour'; correct it"),
    ("use", {**USE, "config": 3}, "has a wrong 'config': 3"),
    ("use", {**USE, "kernel": ""}, "gives no 'kernel'"),
    ("use", {**USE, "device": "a\nb"}, "has a wrong 'device'"),
    ("use", {**USE, "frozen": {"rung": "exact"}}, "has a wrong 'frozen'"),
    ("use", {**USE, "config": {"block": 6}}, "two use entries have the condition of entry 2"),
    ("use", 7, "is no object, but 7"),
    ("never", {"config": {}}, "gives no 'reason'"),
    (
        "never",
        {**NEVER, "signature": 3},
        "wrong 'signature': 3, where a text of at most 1000 printable characters or an object",
    ),
    ("never", {**NEVER, "op": 3}, "has a wrong 'op': 3, where a text of at most 1000 printable characters must be"),
]


@pytest.mark.parametrize("text", UNREADABLE)
def test_a_named_file_that_cannot_be_read_stops_the_job_with_the_way_out(monkeypatch, tmp_path, text):
    path = tmp_path / "overrides.json"
    path.write_text(text)
    monkeypatch.setenv("ATTN_TUNE_OVERRIDES", str(path))
    for _ in range(2):
        with pytest.raises(IntegrityError, match=f"{path}.*{UNREADABLE[text]}.*unset ATTN_TUNE_O"):
            block()
    path.unlink()
    with pytest.raises(StorageError, match="cannot be read"):
        block()


@pytest.mark.parametrize("text", [*UNREADABLE, None])
def test_the_users_own_file_that_cannot_be_read_lets_nothing_stored_run(tmp_path, text, caplog):
    path = own_file(tmp_path)
    path.symlink_to("nowhere") if text is None else path.write_text(text)
    with caplog.at_level(logging.WARNING, "attn_tune"):
        assert block() == 8
    assert caplog.text.count(str(path)) >= 1
    assert str(path) in str(explain(OP, sig(1024), device=H200))


@pytest.mark.parametrize(("section", "entry", "words"), BAD_ENTRIES)
def test_a_bad_entry_is_an_error_for_commands_and_a_warning_in_a_job(
    monkeypatch, tmp_path, caplog, section, entry, words
):
    path = tmp_path / "overrides.json"
    data = {"format": 1, "use": [USE], "never": [NEVER]}
    data[section].append(entry)
    path.write_text(json.dumps(data))
    for ask in (read_overrides, use_overrides, lambda p: change_overrides(p, tuple)):
        with pytest.raises(IntegrityError, match=words):
            ask(path)
    assert json.loads(path.read_text()) == data
    monkeypatch.setenv("ATTN_TUNE_OVERRIDES", str(path))
    with caplog.at_level(logging.WARNING, "attn_tune"):
        # Without a use entry the others hold; after a bad never entry only heuristics answer.
        assert block() == {"use": 5, "never": 8}[section]
    assert words in caplog.text
    assert words in str(explain(OP, sig(1024), device=H200))
    # Nothing may be left out of a file that alone may answer.
    path.write_text(json.dumps(data | {"only": True}))
    with pytest.raises(IntegrityError, match=words):
        reload()


def test_a_file_that_alone_may_answer_and_has_no_use_entries_says_so(tmp_path):
    path = tmp_path / "only.json"
    path.write_text(json.dumps({"format": 1, "only": True, "use": [], "never": []}))
    with use_overrides(path), pytest.raises(LockfileError, match="it has no 'use' entries"):
        block()


def test_the_users_own_file_comes_after_those_of_the_variable(monkeypatch, tmp_path):
    own_file(tmp_path).write_text(json.dumps({"format": 1, "use": [USE], "never": [NEVER]}))
    reload()
    assert block() == 5
    named = tmp_path / "named.json"
    named.write_text(json.dumps({"format": 1, "use": [{**USE, "config": {"block": 6}}]}))
    monkeypatch.setenv("ATTN_TUNE_OVERRIDES", f":{named}:{named}")
    reload()
    assert block() == 6
    named.write_text(json.dumps({"format": 1, "use": [{**USE, "config": {"block": 64}}]}))
    reload()
    assert block() == 5


def test_a_file_is_written_sorted_and_equal_overrides_are_equal_bytes(tmp_path):
    made = [
        make_entry("alpha", config={"block": 9}, direction="fwd"),
        make_entry("alpha", never=True, reason="wrong  dq", signature=["t=7", "left=none"]),
        make_entry("beta", direction="fwd", signature=sig(7), device="nvidia-h200", reason="A/B"),
    ]
    paths = [tmp_path / "folder" / name for name in ("a.json", "b.json")]
    change_overrides(paths[0], lambda old: tuple(made))
    change_overrides(paths[1], lambda old: tuple(made[::-1]))
    assert paths[0].read_bytes() == paths[1].read_bytes()
    lines = paths[0].read_text().splitlines()
    assert '{"kernel":"alpha","op":"toy","reason":"wrong dq","signature":{"left":null,"t":7}}' in lines
    assert read_overrides(paths[0]) == read_overrides(paths[1])
    assert {e.line for e in read_overrides(paths[0]).entries} == {e.line for e in made}


def test_many_writers_lose_no_entry(tmp_path):
    path = tmp_path / "folder" / "overrides.json"

    def add(n):
        made = make_entry("alpha", config={"block": n}, direction="fwd", signature=sig(n))
        change_overrides(path, lambda old: (*old, made))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add, range(1, 41)))
    assert {e.config["block"] for e in read_overrides(path).entries} == set(range(1, 41))
    assert [p.name for p in path.parent.iterdir() if p.suffix not in (".json", ".lock")] == []


def test_the_way_out_of_a_file_is_quoted_for_a_shell(tmp_path):
    environ = {"ATTN_TUNE_OVERRIDES": "a b.json:$(x).json", "XDG_CONFIG_HOME": "/home/a b"}
    assert way_out("a b.json", environ) == "export ATTN_TUNE_OVERRIDES='$(x).json'"
    own = "'/home/a b/attn-tune/overrides.json"
    assert way_out(user_file(environ), environ) == f"mv {own}' {own}.off'"
    assert way_out("x.json", environ) == "leave its 'with attn_tune.use_overrides('x.json')' block"
