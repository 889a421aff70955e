"""``pack_ratios.py``: time ratios of two kernels in a pack, checked against the pack's own rows."""

import json
import re
import statistics
from pathlib import Path

import pack_ratios
import pytest

import attn_tune

PACK = Path(attn_tune.__file__).parent / "packs" / "shipped" / "nvidia-h200"
# Plain problems' signatures name nothing but sizes, the dtype and a causal mask.
PLAIN = re.compile(r".* dtype=\w+( causal=1)?")


def _run(monkeypatch, *arguments):
    monkeypatch.setattr("sys.argv", ["pack_ratios.py", *map(str, arguments)])
    return pack_ratios.main()


@pytest.fixture(scope="module")
def times():
    rows = json.loads((PACK / "shards" / "sm_90" / "flash_attention.fwd.json").read_text())
    found = {}
    for row in rows:
        found.setdefault(row["signature"], {})[row["kernel"]] = row["median_ns"]
    return {s: t for s, t in found.items() if {"triton_hopper", "cudnn"} <= set(t)}


def test_a_row_for_each_problem_that_has_both_and_means_of_the_plain_ones(times, monkeypatch, capsys):
    assert _run(monkeypatch, PACK, "triton_hopper", "cudnn") == 0
    out = capsys.readouterr().out
    assert out.count("\n| b=") == len(times)
    ratios = [t["cudnn"] / t["triton_hopper"] for s, t in times.items() if PLAIN.fullmatch(s) and " h=64 " in s]
    mean = statistics.geometric_mean(ratios)
    assert f"- plain, head dim 64: {mean:.3f} over {len(ratios)} problems" in out


def test_the_forward_for_hopper_is_no_slower_than_cudnn_where_the_pack_takes_it(times):
    """The targets of head dims 64 and 128, by the pack's own rows."""
    for head_dim, target in ((64, 0.97), (128, 0.88)):
        ratios = [
            t["cudnn"] / t["triton_hopper"] for s, t in times.items() if PLAIN.fullmatch(s) and f" h={head_dim} " in s
        ]
        assert len(ratios) >= 8
        assert min(ratios) >= target


def test_a_kernel_that_the_pack_does_not_have_is_named(monkeypatch, capsys):
    assert _run(monkeypatch, PACK, "triton_hopper", "no_such_kernel") == 2
    assert "no_such_kernel" in capsys.readouterr().err
