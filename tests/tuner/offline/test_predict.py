"""The cost model against sums done by hand."""

import dataclasses

import pytest

from attn_tune.devices.identity import device_from_kind
from attn_tune.ops.flash_attention.problem import Problem
from attn_tune.ops.flash_attention.walk import WALK
from attn_tune.ops.paged_decode.problem import Problem as DecodeProblem
from attn_tune.ops.paged_decode.walk import WALK as DECODE
from attn_tune.tuner.offline.predict.model import predict
from attn_tune.tuner.offline.predict.schedule import KernelSchedule, Stretch
from attn_tune.tuner.offline.predict.tpu_core import core_of

V6E = device_from_kind("tpu-v6e")
FORWARD = {"block_q": 256, "block_kv": 512, "block_kv_compute": 256}


def make_problem(**changes):
    """A causal problem of several blocks."""
    sizes = {"batch": 2, "q_len": 2048, "kv_len": 2048, "num_q_heads": 4, "num_kv_heads": 2}
    return Problem(**{**sizes, "head_dim": 128, "v_head_dim": 128, "causal": True, **changes})


def make_schedule(name="splash_mha_fwd_no_residuals", *, visit=1000, steps=34):
    """A schedule with round numbers: 10 once, 100 a step, ``visit`` a block, 50 a resting block."""
    return KernelSchedule(
        name=name,
        stretches=(
            Stretch(bundles=10),
            Stretch(bundles=60, loops=(steps,)),
            Stretch(bundles=40, skippable=1, loops=(steps,)),
            Stretch(bundles=50, skippable=2, loops=(steps,)),
            Stretch(bundles=visit, skippable=2, loops=(steps,), units={"matmul": 8}),
        ),
    )


def test_each_stretch_costs_its_bundles_times_its_executions():
    problem = make_problem()
    found = predict([make_schedule(visit=4000)], WALK, problem, FORWARD, V6E)
    core = core_of(V6E)
    assert found
    assert core
    steps, visits, rests = 2 * 4 * 32, 2 * 4 * 20, 2 * 4 * 8
    cycles = 10 + 100 * steps + 4000 * visits + 50 * rests
    # At 4000 bundles a visit the copies of 256 KB are hidden.
    assert found.terms["copies_ns"] == 0
    assert found.ns == pytest.approx(cycles * 1e3 / core.clock_mhz + 150 * visits + 2000, abs=1)
    assert found.low_ns < found.ns < found.high_ns


def test_steps_are_those_of_the_grid_where_it_is_known_and_the_visits_where_it_is_computed():
    problem, visits = make_problem(), 2 * 4 * 20
    plain = make_schedule(steps=2 * 4 * 32 + 2)
    shrunk = dataclasses.replace(plain, steps=2 * 4 * 12)
    stretches = [dataclasses.replace(s, loops=(None, *s.loops[1:])) if s.loops else s for s in plain.stretches]
    computed = dataclasses.replace(plain, stretches=tuple(stretches))
    found = [predict([one], WALK, problem, FORWARD, V6E) for one in (plain, shrunk, computed)]
    per_step = 100 * 1e3 / core_of(V6E).clock_mhz
    steps = [round(one.terms["steps_ns"] / per_step) for one in found if one]
    assert steps == pytest.approx([2 * 4 * 32, 2 * 4 * 12, visits], abs=1)


def test_copies_that_take_longer_than_the_bundles_are_waited_for():
    quick = predict([make_schedule(visit=10)], WALK, make_problem(), FORWARD, V6E)
    assert quick
    assert quick.terms["copies_ns"] > quick.terms["visits_ns"]


def test_two_cores_that_share_a_grid_take_half_the_time():
    problem = make_problem()
    steps, v5p = 2 * 4 * 32, device_from_kind("tpu-v5p")
    one = predict([make_schedule(steps=steps + 2)], WALK, problem, FORWARD, v5p)
    two = predict([make_schedule(steps=steps // 2 + 2)], WALK, problem, FORWARD, v5p)
    assert one
    assert two
    assert two.terms["visits_ns"] == pytest.approx(one.terms["visits_ns"] / 2, abs=1)


def test_a_computed_grid_is_shared_by_two_cores_where_the_launch_allows_it():
    problem, v5p = make_problem(), device_from_kind("tpu-v5p")
    plain = make_schedule()
    stretches = [dataclasses.replace(s, loops=(None, *s.loops[1:])) if s.loops else s for s in plain.stretches]
    alone = dataclasses.replace(plain, stretches=tuple(stretches))
    shared = dataclasses.replace(alone, is_parallel=True)
    one, two = (predict([s], WALK, problem, FORWARD, v5p) for s in (alone, shared))
    assert one
    assert two
    assert two.terms["visits_ns"] == pytest.approx(one.terms["visits_ns"] / 2, abs=1)
    # One core has no other to share with.
    assert predict([alone], WALK, problem, FORWARD, V6E) == predict([shared], WALK, problem, FORWARD, V6E)


def test_launches_add_up_and_casts_are_left_out():
    problem = make_problem()
    config = {"dq": FORWARD, "dkv": FORWARD}
    dq, dkv = make_schedule("splash_mha_dq"), make_schedule("splash_mha_dkv")
    cast = KernelSchedule(name="fusion", stretches=(Stretch(bundles=10_000, loops=(9,)),))
    alone = [predict([one], WALK, problem, config, V6E) for one in (dq, dkv)]
    both = predict([cast, dq, dkv], WALK, problem, config, V6E)
    assert both
    assert all(alone)
    assert both.ns == pytest.approx(sum(p.ns for p in alone if p), abs=2)


def test_an_unknown_device_has_no_prediction():
    assert predict([make_schedule()], WALK, make_problem(), FORWARD, device_from_kind("sm_90")) is None
    assert predict([], WALK, make_problem(), FORWARD, V6E) is None


def test_a_visit_executes_either_the_masked_or_the_whole_body():
    problem = make_problem()
    one = make_schedule(visit=2000)
    body = Stretch(bundles=3000, skippable=2, loops=(34,), units={"matmul": 8})
    two = KernelSchedule(name=one.name, stretches=(*one.stretches, body))
    found, alone = (predict([s], WALK, problem, FORWARD, V6E) for s in (two, one))
    assert found
    assert alone
    # Row block i of 256 is cut at the diagonal alone: one block of each of its 8 rows, of 20 visits.
    mean = 3000 * 8 / 20 + 2000 * 12 / 20
    assert found.terms["visits_ns"] == pytest.approx(alone.terms["visits_ns"] * mean / 2000, rel=1e-3)


DECODING = DecodeProblem(batch=4, q_len=1, kv_len=4096, num_q_heads=8, num_kv_heads=2, head_dim=128, v_head_dim=128,
                         page_size=64, layout="head_first")  # fmt: skip
BLOCK = {"pages_per_compute_block": 16}


@pytest.mark.parametrize("starts", [(500, 505), (505,)])
def test_a_launch_that_copies_by_itself_starts_the_first_copies_once(starts):
    """Half of a step is outside the loop over blocks; the copies of the first block are beside those of every next."""
    schedule = KernelSchedule(
        name="any",
        steps=8,
        stretches=(
            Stretch(bundles=40),
            Stretch(bundles=100, loops=(10,)),
            Stretch(bundles=1000, loops=(10, None), units={"matmul": 8}),
            Stretch(bundles=6, skippable=1, loops=(10, None)),
            *(Stretch(bundles=n, skippable=1, loops=(10, None)) for n in starts),
        ),
    )
    found, core = predict([schedule], DECODE, DECODING, BLOCK, V6E), core_of(V6E)
    assert found
    assert core
    # 4096 tokens less the last one's are 63 or 64 whole pages: four blocks of each of four sequences and two heads.
    visits = 2 * 4 * 4
    assert found.terms["visits_ns"] == pytest.approx((1006 + starts[0]) * visits * 1e3 / core.clock_mhz, abs=1)
    assert found.terms["steps_ns"] == pytest.approx(100 * 8 * 1e3 / core.clock_mhz, abs=1)
    assert found.terms["copies_ns"] == 0


def test_blocks_of_pages_that_take_longer_to_copy_than_to_compute_are_waited_for():
    stretches = (Stretch(bundles=10, loops=(10,)), Stretch(bundles=10, loops=(10, None), units={"matmul": 8}))
    found = predict([KernelSchedule(name="any", steps=8, stretches=stretches)], DECODE, DECODING, BLOCK, V6E)
    core = core_of(V6E)
    assert found
    assert core
    read = 4 * 4096 * 2 * 2 * 128 * 2
    busy = (10 + 10 * 8 / 32) * 32
    assert found.terms["copies_ns"] == pytest.approx((read / core.bytes_per_cycle - busy) * 1e3 / core.clock_mhz, abs=2)
