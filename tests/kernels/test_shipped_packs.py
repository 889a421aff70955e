"""The packs in the wheel: every row answers on its device, and what nobody measured says so."""

from pathlib import Path

import pytest

import attn_tune
from attn_tune.kernels.coverage import Reach, cover
from attn_tune.runtime.packs import read_pack
from attn_tune.tuner.targets import find_target

FOLDER = Path(attn_tune.__file__).parent / "packs"
PACKS = sorted(path.parent for path in FOLDER.glob("*/manifest.json"))
MOST_BYTES = 64 << 10


@pytest.mark.parametrize("path", PACKS, ids=lambda path: path.name)
def test_every_row_answers_on_the_device_that_the_pack_is_named_after(path):
    pack = read_pack(path, signed=False)
    found = list(cover(pack))
    assert found
    assert Reach.DEAD not in {one.reach for one in found}, [one.reason for one in found]
    assert {one.device for one in found} == {path.name}
    assert sum(file.stat().st_size for file in path.rglob("*") if file.is_file()) < MOST_BYTES


@pytest.mark.parametrize(
    "path", [p for p in PACKS if p.name.startswith("tpu")], ids=lambda path: path.name
)
def test_what_is_shipped_for_tpus_is_predicted_and_has_no_time(path):
    assert find_target(path.name).topology
    pack = read_pack(path, signed=False)
    assert {one.reach for one in cover(pack)} == {Reach.REACHED}
    for row in pack.rows:
        assert row.state == "predicted"
        assert (row.median_ns, row.samples) == (None, 0)
