"""The packs in the wheel: every row answers on its device, and rows that were not measured are marked."""

from pathlib import Path

import pytest

import attn_tune
from attn_tune.packs.reader import read_pack
from attn_tune.runtime.lookup.answer import Rung, SourceKind
from attn_tune.runtime.lookup.coverage import Reach, cover
from attn_tune.runtime.lookup.dispatch import lookup
from attn_tune.tuner.offline.target import TOPOLOGIES, find_target
from attn_tune.tuner.plan.grid import load_grid

FOLDER = Path(attn_tune.__file__).parent / "packs" / "shipped"
PACKS = sorted(path.parent for path in FOLDER.glob("*/manifest.json"))
TPU_PACKS = [path for path in PACKS if path.name.startswith("tpu")]
MOST_BYTES_EACH = 512


@pytest.mark.parametrize("path", PACKS, ids=lambda path: path.name)
def test_every_row_answers_on_the_device_that_the_pack_is_named_after(path):
    pack = read_pack(path, signed=False)
    found = list(cover(pack))
    assert found
    assert Reach.DEAD not in {one.reach for one in found}, [one.reason for one in found]
    (device,) = {one.device for one in found}
    assert path.name == device or path.name.startswith(f"{device}-")
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    assert size < MOST_BYTES_EACH * (len(pack.rows) + len(pack.environments)) + 4096


@pytest.mark.parametrize("path", TPU_PACKS, ids=lambda path: path.name)
def test_rows_for_tpus_are_predicted_and_have_no_time(path):
    assert find_target(path.name).topology
    pack = read_pack(path, signed=False)
    assert {one.reach for one in cover(pack)} == {Reach.REACHED}
    for row in pack.rows:
        assert row.state == "predicted"
        assert (row.median_ns, row.samples) == (None, 0)


@pytest.mark.parametrize("name", TOPOLOGIES)
@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_a_tpu_finds_a_prediction_for_every_length_of_the_preset_grid(name, direction):
    device = find_target(name).device
    for point in load_grid("llama3-8b").points:
        answer = lookup(point.op, point.signature.text, direction, device=device)
        assert (answer.rung, answer.source_kind) == (Rung.EXACT, SourceKind.SHIPPED), point.name
        assert answer.state == "predicted"
