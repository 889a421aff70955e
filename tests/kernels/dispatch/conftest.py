"""The registry that the tests of the dispatch see."""

import pytest

from attn_tune.kernels import registry
from attn_tune.runtime import counters, misses, snapshot
from tests.kernels.dispatch.toy_op import KERNELS, TOY
from tests.runtime.packbuilder import OP


@pytest.fixture(autouse=True)
def toy(monkeypatch, tmp_path):
    """A registry of one toy op, and no packs but those a test puts there."""
    monkeypatch.setattr(registry, "ops", lambda: {OP: TOY})
    monkeypatch.setattr(registry, "kernels", lambda: {k.id: k for k in KERNELS})
    for name in (
        "ATTN_TUNE_PACKS",
        "ATTN_TUNE_DEVICE_AS",
        "ATTN_TUNE_LOCKFILE",
        "ATTN_TUNE_ON_MISS",
        "ATTN_TUNE_QUARANTINE",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setattr(snapshot, "_current", None)
    monkeypatch.setattr(misses, "_mode", None)
    monkeypatch.setattr(misses, "_said", None)
    monkeypatch.setattr(snapshot, "_lockfile_path", None)
    counters.reset_stats()
