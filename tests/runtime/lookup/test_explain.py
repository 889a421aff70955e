"""Text of ``explain``, for terminals and notebooks."""

import dataclasses
import html
import json

import pytest

from attn_tune.devices.identity import current_device
from attn_tune.runtime import misses
from attn_tune.runtime.active.layers import reload, use_overrides, use_pack
from attn_tune.runtime.lookup.dispatch import explain
from attn_tune.schema import UsageError
from tests.runtime.lookup.toy_op import pack
from tests.runtime.packbuilder import H200, OP, row, sig

GOLDEN = """\
toy.fwd  toy/v1 b=1 t=6144 h=64 dtype=bfloat16
device nvidia-h200  (sm_90, 132 units, 232448 B on chip, 700 W; {digest})
 1. use_pack empty 2026.1                no rows of toy.fwd for sm_90
 2. use_pack lab 2026.1, device exact    bucket: alpha block=2000  rejected: block 2000 does not fit
 3. use_pack lab 2026.1, device exact    miss: nearest row differs in t 6144 vs 8000
 4. use_pack lab 2026.1, device variant  neighbour: alpha block=64  CHOSEN (verified, winner, \
1.50x away: toy/v1 b=1 t=4096 h=64 dtype=bfloat16, device differs in power_watts 700 vs 500, \
regret at most 0.4 % where measured, 1.50x as fast as the kernel's untuned config of then)
 5. untuned                              alpha block=8
 6. 1 kernel                             cannot run here (--all lists them)"""


def test_explain_reads_like_this():
    capped = dataclasses.replace(H200, power_watts=500)
    lab = pack(row(sig(8000), 2000), row(sig(4096), 64, device=capped))
    b200 = dataclasses.replace(H200, family="sm_100", variant="nvidia-b200")
    empty = pack(row(sig(1), 1, device=b200), name="empty")
    with use_pack(lab), use_pack(empty):
        found = explain(OP, sig(6144), device=H200)
    assert str(found) == GOLDEN.format(digest=H200.digest)
    assert repr(found) == str(found)
    assert json.loads(json.dumps(found.to_dict()))["answer"]["kernel"] == "alpha"
    assert "the module 'no_such_module_anywhere' is not installed" in found.text(every=True)
    assert found.absent == ("toy/absent",)
    assert found.answer.row_signature == sig(4096)
    assert found.heuristic.config == {"block": 8}


def test_a_size_that_is_not_known_is_no_zero():
    unknown = dataclasses.replace(H200, units=0)
    assert "(sm_90, number of units unknown, 232448 B on chip" in str(explain(OP, sig(1), device=unknown))


def test_a_device_given_by_name_is_one_clear_error():
    with pytest.raises(UsageError, match="device must be a Device or None, got 'nvidia-h200'; ATTN_TUNE_DEVICE_AS"):
        explain(OP, sig(1), device="nvidia-h200")


def test_all_lists_the_kernels_that_can_too_in_their_untuned_order():
    found = explain(OP, sig(1024), device=H200)
    assert found.able == ("toy/alpha", "toy/beta")
    lines = [line.split(maxsplit=3)[2:] for line in found.text(every=True).splitlines() if "kernel toy/" in line]
    assert lines[0] == ["toy/beta", "can do it; behind alpha in the untuned order"]
    assert "can do it" not in str(found)
    assert explain(OP, sig(1024), device=H200, kernel="beta").text(every=True).count("can do it") == 0


def test_explain_when_nothing_can_run():
    found = explain(OP, sig(1, dtype="float16"), "bwd", device=H200)
    assert found.answer is None
    assert "nothing can run" in str(found)
    assert len(found.kernels) == 3


def test_a_miss_that_strict_jobs_refuse_is_not_chosen(monkeypatch):
    monkeypatch.setenv(misses.ON_MISS, "strict")
    found = explain(OP, sig(1024), device=H200)
    assert found.answer is None
    assert "alpha block=8  refused by ATTN_TUNE_ON_MISS=strict: the call raises NoDataError" in str(found)
    assert "CHOSEN" not in str(found)
    assert "nothing can run" not in str(found)
    with use_pack(pack(row(sig(1024), 64))):
        assert explain(OP, sig(1024), device=H200).answer.rung == "exact"
    misses.set_miss_mode("strict")
    assert explain(OP, sig(1024), device=H200).refused_by == 'set_miss_mode("strict")'


def test_a_misspelled_miss_mode_is_an_error_as_in_a_job(monkeypatch):
    monkeypatch.setenv(misses.ON_MISS, "strickt")
    with pytest.raises(UsageError, match="strickt"):
        explain(OP, sig(1024), device=H200)


def test_a_notebook_shows_the_text_unwrapped_and_escaped():
    found = explain(OP, sig(1, dtype="float16"), "bwd", device=H200)
    found = dataclasses.replace(found, op="<toy>")
    shown = found._repr_html_()
    assert shown.startswith("<pre style='white-space: pre'>&lt;toy&gt;.bwd")
    assert html.unescape(shown.partition(">")[2]) == f"{found}</pre>"


def test_a_narrow_explanation_breaks_between_words_and_no_number_from_its_unit():
    lab = pack(row(sig(8000), 2000), row(sig(4096), 64))
    with use_pack(lab):
        one = explain(OP, sig(6144), device=H200)
    for width in (60, 80, 100):
        narrow = one.text(width=width)
        assert all(len(line) <= width for line in narrow.splitlines())
        assert narrow.split() == one.text().split()
        for whole in ("0.4 %", "232448 B", "700 W", "132 units"):
            assert whole in narrow
    assert one.text(width=500) == one.text()


def test_a_row_that_only_this_machines_software_turns_down_is_told_apart():
    lab = pack(row(sig(1024), 64, kernel="absent"))
    with use_pack(lab):
        away = explain(OP, sig(1024), device=H200)
        near = explain(OP, sig(1100), device=H200)
        here = explain(OP, sig(1024), device=current_device())
    assert away.answer.is_miss
    assert "CHOSEN (1 stored row above may not answer here)" in str(away)
    assert "This machine has no nvidia-h200, and lacks what absent needs (" in str(away)
    assert str(away).endswith("gets: absent block=64")
    assert "This machine" not in str(near), "of another problem nothing is known there either"
    assert "CHOSEN (nothing stored answers)" in str(here)
    assert "This machine" not in str(here)


def test_a_faster_row_of_a_kernel_that_is_not_installed_is_shown_before_the_one_that_answers():
    faster, slower = row(sig(1024), 64, kernel="absent"), row(sig(1024), 32, rank=1)
    with use_pack(pack(faster, slower)):
        found = explain(OP, sig(1024), device=H200)
    assert (found.answer.kernel, found.answer.config["block"]) == ("alpha", 32)
    first, second = (step for step in found.steps if step.row is not None)
    assert (first.row.kernel, second.row.kernel) == ("absent", "alpha")
    assert first.rejected
    assert found.unmet is first


def test_what_the_job_forbids_is_not_promised_for_another_machine(tmp_path, monkeypatch):
    asked = {"device": H200}
    with use_pack(pack(row(sig(1024), 64, kernel="absent", repeatable=False))):
        monkeypatch.setenv("ATTN_TUNE_DETERMINISTIC", "1")
        reload()
        assert explain(OP, sig(1024), **asked).unmet is None
        monkeypatch.delenv("ATTN_TUNE_DETERMINISTIC")
        reload()
        never = tmp_path / "never.json"
        never.write_text('{"format": 1, "never": [{"op": "toy", "kernel": "absent", "reason": "x"}]}')
        with use_pack(pack(row(sig(1024), 64, kernel="absent"))):
            assert explain(OP, sig(1024), **asked).unmet is not None
            with use_overrides(never):
                assert explain(OP, sig(1024), **asked).unmet is None


def test_a_row_that_does_not_fit_the_device_is_not_put_down_to_software():
    with use_pack(pack(row(sig(1024), 2000))):
        assert explain(OP, sig(1024), device=H200).unmet is None
