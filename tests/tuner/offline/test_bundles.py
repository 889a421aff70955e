"""Reads libtpu's schedule: bundles, the loops around them, and the content of VMEM."""

import pytest

from attn_tune.tuner.offline.predict.bundles import read_schedule
from attn_tune.tuner.offline.predict.schedule import schedule_from_dict, schedule_to_dict

HEAD = """
LH: loop header
PF: predicated region fallthrough
= control target key end
"""


def bundle(address, text="%s1 = sadd.s32 1, %s2", mark=""):
    """One line in the compiler's spelling."""
    spelled = hex(address) if address else "0"
    return f" {spelled:>6} {mark:>2}: > {{ {text} }}"


def program(*, test="scmp.ge.s32.totalorder %s9, 34 /* loop exit test */", inner=""):
    """Three bundles once; a loop of twenty whose bundles 6 to 12 a branch skips, four delay slots after it."""
    lines = [HEAD]
    special = {
        3: ("%s1 = smov.u32 0 } /* Start region 9 */ {", "LB"),
        5: ("%404 = sbr.rel (%p1) target = $region7", ""),
        10: ("%v1 = vmatmul.mubr.f32.gmra.mxu0 %v2  ;;  %v3 = vpow2.f32 %v4", ""),
        11: ("%12 = vst [vmem:[#allocation42_spill] sm:$0xff] /*vst_source=*/%v1", ""),
        12: (inner or "%v5 = vadd.xlane.f32.xlu0 %v6", ""),
        13: ("%s3 = sld [smem:[#x]] } /* Start/End empty region 7 :: Start region 8 */ {", "PF"),
        17: (f"%p3 = {test}", ""),
        18: ("%32 = sbr.rel (!%p3) target = $region9", ""),
    }
    for address in range(25):
        text, mark = special.get(address, ("%s1 = sadd.s32 1, %s2", ""))
        lines.append(bundle(address, text, mark))
    return "\n".join(lines).splitlines()


def test_bundles_fall_into_stretches_by_loop_and_branch():
    schedule = read_schedule("kernel", program())
    once, steps, skipped = sorted(schedule.stretches, key=lambda s: (len(s.loops), s.skippable))
    assert once.loops == ()
    assert once.bundles == 5
    assert steps.loops == (34,)
    assert steps.skippable == 0
    assert steps.bundles == 17
    # The branch at 5 has its delay slots 6 to 9; 10 to 12 are what it skips.
    assert skipped.loops == (34,)
    assert skipped.skippable == 1
    assert skipped.bundles == 3
    assert skipped.units == {"matmul": 1, "transcendental": 1, "cross_lane": 1, "spill": 1}
    assert schedule.bundles == 25
    assert schedule.grid_steps == 34


def test_a_loop_whose_end_the_compiler_does_not_know_has_no_count():
    schedule = read_schedule("kernel", program(test="scmp.ge.s32.totalorder %s9, %s10"))
    assert {s.loops for s in schedule.stretches} == {(), (None,)}
    assert schedule.grid_steps is None


def test_vmem_is_what_is_allocated_and_what_is_spilled():
    allocations = [
        "  #allocation2 [shape = 'u32[144,128]{1,0}', space=vmem, size = 0x12000, scoped, tag = 'internal scratch']",
        "  #allocation3 [shape = 'u8[262144]{0}', space=vmem, size = 0x40000, scoped, tag = 'input window allocation "
        "for operator input 3. The window shape is bf16[1,512,128]. This allocation has 2 buffering levels.']",
        "  #allocation4 [shape = 's32[1]{0}', space=sflag, size = 0x4, scoped, tag = 'scoped memory']",
        " 0 : { #allocation9 [shape = 'f32[8]', space=vmem, size = 0xffff, tag = 'below the list'] }",
    ]
    schedule = read_schedule("kernel", program(), allocations)
    assert schedule.spill_bytes == 4096
    assert schedule.vmem_bytes == 0x12000 + 0x40000 + 4096


def test_a_schedule_survives_its_plain_form():
    schedule = read_schedule("kernel", program())
    assert schedule_from_dict(schedule_to_dict(schedule)) == schedule


@pytest.mark.parametrize("text", [[], [HEAD], ["no bundle here"]])
def test_a_text_without_bundles_is_an_empty_schedule(text):
    assert read_schedule("kernel", text).bundles == 0
