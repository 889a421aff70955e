"""The registry that the tests of the dispatch see."""

import pytest

from attn_tune.runtime import lookup_counters, misses
from attn_tune.runtime.active import settings
from attn_tune.runtime.lookup import dispatch
from tests.ops.known import known_kernels, known_ops
from tests.runtime.lookup.toy_op import KERNELS, TOY


@pytest.fixture(autouse=True)
def toy(monkeypatch, tmp_path):
    """A registry of one toy op, and no packs but those a test puts there."""
    known_ops(monkeypatch, TOY)
    known_kernels(monkeypatch, {k.id: k for k in KERNELS})
    for name in (
        "ATTN_TUNE_PACKS",
        "ATTN_TUNE_DEVICE_AS",
        "ATTN_TUNE_ON_MISS",
        "ATTN_TUNE_OVERRIDES",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(settings, "_current", None)
    monkeypatch.setattr(dispatch, "_idle", set())
    monkeypatch.setattr(misses, "_mode", None)
    monkeypatch.setattr(misses, "_program_mode", None)
    lookup_counters.reset_stats()
