"""The notebook in ``examples`` runs cell by cell on a small database, and is committed without outputs."""

import json
from pathlib import Path

import pytest

from attn_tune.db import Database
from attn_tune.schema import Status
from tests.db.facts import begin, make_trial

NOTEBOOK = Path(__file__).resolve().parents[1] / "examples" / "landscape.ipynb"


def cells():
    return [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]


@pytest.fixture
def lab(tmp_path, monkeypatch):
    path = tmp_path / "lab.db"
    with Database.open(path, create=True) as database:
        run = begin(database)
        for block_q in (32, 64, 128):
            for block_k in (32, 64):
                for warps in (4, 8):
                    config = {"block_q": block_q, "block_k": block_k, "num_warps": warps}
                    base = 1_000 * block_q + 100 * block_k + warps
                    if (block_q, block_k) == (128, 64):
                        database.record(run, make_trial(config, status=Status.OUT_OF_RESOURCES))
                    else:
                        database.record(run, make_trial(config, (base, base + 10, base + 20), is_heuristic=warps == 4))
        database.rebuild_decisions()
    monkeypatch.setenv("ATTN_TUNE_DB", str(path))


def test_the_notebook_is_committed_without_outputs():
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells())
    assert NOTEBOOK.stat().st_size < 60_000


def test_its_cells_draw_the_landscape(lab, monkeypatch):
    matplotlib = pytest.importorskip("matplotlib", reason="matplotlib, of the extra dev, is not installed")
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    monkeypatch.setattr(plt, "show", lambda: None)
    names = {}
    for cell in cells():
        exec(compile("".join(cell["source"]), cell["id"], "exec"), names)
    figure = names["figure"]
    assert (names["rows"], names["columns"]) == ("cfg_block_q", "cfg_block_k")
    assert names["times"].loc[32, 32] == pytest.approx((32_000 + 3_200 + 4 + 10) / 1e3)
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert texts.count("x") == 1
    assert texts.count("1.00") == 1
    assert len(texts) == 6
    plt.close(figure)
