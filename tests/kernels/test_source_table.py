"""The tables beside the digest of sources: parsed modules, which save time, and aliases."""

import pytest

from attn_tune.kernels import source, spec as spec_module
from attn_tune.kernels.source import current_digest, reached_modules, source_hash
from attn_tune.schema.environment import Environment, Grade
from attn_tune.schema.errors import AttnTuneWarning
from tests.kernels.test_source_digest import KERNELS, calls_of, clear
from tools import source_table


def test_the_table_of_parsed_modules_is_of_todays_source():
    assert source.TABLE.read_text() == source_table.text(), "run 'python tools/source_table.py'"


@pytest.fixture
def parses(monkeypatch):
    """The names of the modules that are parsed, as it happens, from an empty memory on."""
    parsed = []
    parse = source._parse
    monkeypatch.setattr(source, "_parse", lambda name, *more: parsed.append(name) or parse(name, *more))
    clear()
    yield parsed
    clear()


@pytest.mark.parametrize("spec", KERNELS.values(), ids=KERNELS)
def test_a_digest_is_the_same_with_and_without_the_table(spec, parses, monkeypatch):
    quick = source_hash(calls_of(spec))
    assert parses == []
    clear()
    monkeypatch.setattr(source, "read_table", dict)
    assert source_hash(calls_of(spec)) == quick
    assert set(parses) == set(reached_modules(calls_of(spec)))


@pytest.mark.parametrize("change", [{"sha256": "0" * 64}, {"runs": [[["attn_tune.gone", "import as x"]]]}])
def test_an_entry_of_other_bytes_or_of_a_module_that_is_gone_does_not_count(change, parses, monkeypatch):
    calls = calls_of(KERNELS["flash_attention/xla"])
    right = source_hash(calls)
    clear()
    table = source.read_table()
    monkeypatch.setattr(source, "read_table", lambda: {**table, calls[0]: table[calls[0]] | change})
    assert source_hash(calls) == right
    assert parses == [calls[0]]


@pytest.mark.parametrize(
    "text", ["", "{", "[1]", '{"attn_tune.kernels.flash_attention.xla.forward": {"sha256": 1}}', None]
)
def test_a_damaged_table_costs_time_and_changes_no_digest(text, parses, monkeypatch, tmp_path):
    calls = calls_of(KERNELS["flash_attention/xla"])
    right = source_hash(calls)
    clear()
    damaged = tmp_path / "table.json"
    if text is not None:
        damaged.write_text(text)
    # Not through their caches, which other tests share.
    monkeypatch.setattr(source, "TABLE", damaged)
    monkeypatch.setattr(source, "read_table", source.read_table.__wrapped__)
    assert source_hash(calls) == right
    assert parses
    monkeypatch.setattr(source, "ALIASES", damaged)
    monkeypatch.setattr(source, "read_aliases", source.read_aliases.__wrapped__)
    assert current_digest("a") == "a"


@pytest.mark.parametrize("error", [NotADirectoryError("in a zip file"), ImportError("no source"), SyntaxError("bad")])
def test_a_kernel_whose_source_cannot_be_read_has_no_fresh_row_and_fails_no_lookup(error, monkeypatch):
    def unreadable(modules, libraries=()):
        raise error

    spec = KERNELS["flash_attention/xla"]
    base = Environment(jax="1", jaxlib="1")
    fresh = spec.environment(base)
    monkeypatch.setattr(source, "source_hash", unreadable)
    with pytest.warns(AttnTuneWarning, match="flash_attention/xla cannot be read"):
        found = spec.environment(base)
    assert found.source_hash == ""
    assert found.grade(fresh) is found.grade(found) is Grade.STALE
    spec_module._warn_unreadable.cache_clear()


def test_aliases_are_followed_to_the_digest_of_today(monkeypatch):
    monkeypatch.setattr(source, "read_aliases", lambda: {"a": "b", "b": "c", "x": "y", "y": "x"})
    assert [current_digest(name) for name in "abcd"] == ["c", "c", "c", "d"]
    assert current_digest("x") in "xy"


def test_the_table_of_aliases_leads_to_digests_of_today():
    today = {spec.source_hash for spec in KERNELS.values()}
    assert {current_digest(old) for old in source.read_aliases()} <= today
