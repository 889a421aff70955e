"""Two processes that share nothing but the database write the same packs, bytes and all."""

import same_bytes

from tests.cli.fakes import fill


def test_processes_of_other_locales_zones_seeds_and_umasks_write_the_same_bytes(tmp_path):
    fill(tmp_path / "lab.db")
    sums = same_bytes.compare(tmp_path / "lab.db", tmp_path / "worlds")
    assert {name.partition("/")[0] for name in sums} == {
        "pack",
        "pack.atpack",
        "attn_tune_pack_same-1-py3-none-any.whl",
    }
