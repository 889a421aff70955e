"""The log of a job and its warnings name the program, and the job's own line."""

import logging
import re
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import attn_tune
from attn_tune.runtime import misses, variables
from attn_tune.runtime.variables import VARIABLES, warn_of_unknown
from attn_tune.schema.errors import AttnTuneWarning

PAGE = Path(__file__).resolve().parents[2] / "docs" / "environment-variables.md"


def test_a_pack_that_is_ignored_is_logged_with_the_program_and_the_line_that_asked(monkeypatch, tmp_path, caplog):
    monkeypatch.setenv("ATTN_TUNE_PACKS", str(tmp_path / "none.atpack"))
    attn_tune.reload()
    (record,) = [r for r in caplog.records if "none.atpack" in r.getMessage()]
    assert record.getMessage().startswith("attn-tune: ignored: pack ")
    assert (record.name, record.levelno, record.pathname) == ("attn_tune", logging.WARNING, __file__)
    monkeypatch.undo()
    attn_tune.reload()


def test_a_miss_under_jit_warns_at_the_line_of_the_job_and_not_in_jax(monkeypatch):
    q = jnp.zeros((1, 8, 1, 16))
    # Read by `stats` alone, so that no other test's answer to this question counts.
    monkeypatch.setattr(misses, "_misses", {})
    monkeypatch.setattr(misses, "_program_mode", misses.MissMode.WARN)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        jax.eval_shape(jax.jit(jax.grad(lambda x: attn_tune.flash_attention(x, q, q).sum())), q)
    found = {w.filename for w in warned if issubclass(w.category, AttnTuneWarning)}
    assert found == {__file__}


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("ATTN_TUNE_ONMISS", "ATTN_TUNE_ON_MISS"), ("ATTN_TUNE_PACK", "ATTN_TUNE_PACKS"), ("ATTN_TUNE_", "ATTN_TUNE_DB")],
)
def test_an_unknown_variable_is_logged_once_with_the_nearest_name(name, nearest, monkeypatch, caplog):
    monkeypatch.setattr(variables, "_told", set())
    for _ in range(2):
        warn_of_unknown({name: "strict", **dict.fromkeys(VARIABLES, ""), "PATH": "", "XATTN_TUNE_Y": ""})
    assert caplog.messages == [
        f"attn-tune: no variable is named {name}, and nothing reads it; the nearest name is {nearest}"
    ]


def test_the_known_variables_are_those_of_the_page():
    assert set(VARIABLES) == set(re.findall(r"^\| `(ATTN_TUNE_[A-Z_]+)` \|", PAGE.read_text(), re.MULTILINE))


def test_a_misspelled_variable_is_logged_as_settings_are_read(monkeypatch, caplog):
    monkeypatch.setattr(variables, "_told", set())
    monkeypatch.setenv("ATTN_TUNE_DETERMINSTIC", "1")
    attn_tune.reload()
    assert "the nearest name is ATTN_TUNE_DETERMINISTIC" in caplog.text
