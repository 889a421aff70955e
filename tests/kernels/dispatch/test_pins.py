"""Pins: one config whatever the packs say, where it can run."""

import pytest

from attn_tune.kernels.dispatch import explain, lookup
from attn_tune.kernels.pinning import pin
from attn_tune.runtime.answer import Rung, SourceKind
from attn_tune.runtime.overlay import use_pack
from attn_tune.schema import UsageError
from tests.kernels.dispatch.test_tracing import traced_block
from tests.kernels.dispatch.toy_op import Config, OtherConfig, pack, problem
from tests.runtime.packbuilder import H200, OP, row, sig


def block(t=1024, **more):
    return lookup(OP, sig(t), device=H200, **more).config["block"]


def test_a_pin_goes_before_every_pack_and_the_innermost_first():
    with pin(OP, "alpha", {"block": 2}), use_pack(pack(row(sig(1024), 64))):
        answer = lookup(OP, sig(1024), device=H200)
        assert (answer.rung, answer.source_kind, answer.config) == (
            Rung.PINNED,
            SourceKind.PIN,
            {"block": 2},
        )
        with pin(OP, "toy/alpha", Config(block=3), problem=sig(1024)):
            assert [block(), block(2000)] == [3, 2]
        # Another kernel by name, another direction: not concerned.
        assert block(kernel="beta") == OtherConfig().block
        assert lookup(OP, sig(1024), "bwd", device=H200).is_miss
        text = str(explain(OP, sig(1024), device=H200))
    words = " ".join(text.split())
    assert (
        "1 pin of toy.fwd pinned: alpha block=2 CHOSEN (pinned, asked before all packs; " in words
    )
    assert "to end it: leave its 'with attn_tune.pin(...)' block) 2 heuristic" in words
    assert block() == 8


def test_a_pin_that_cannot_run_falls_through_and_says_why():
    with pin(OP, "alpha", {"block": 2000}), use_pack(pack(row(sig(1024), 64))):
        answer = lookup(OP, sig(1024), device=H200)
    assert answer.config == {"block": 64}
    assert "block 2000 does not fit" in answer.rejected[0].reason
    assert "pin of toy.fwd" in answer.rejected[0].subject


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((OP, "alhpa", {"block": 1}), "did you mean 'alpha'"),
        ((OP, "alpha", {"blok": 1}), "no knob 'blok'"),
        ((OP, "alpha", OtherConfig()), "is a Config, got OtherConfig"),
        ((OP, "beta", {"block": 1}, "bwd"), "unknown direction of toy/beta 'bwd'"),
    ],
)
def test_a_wrong_pin_is_an_error_at_once(arguments, words):
    with pytest.raises(UsageError, match=words):
        pin(*arguments)


def test_a_pin_for_a_problem_object_is_one_for_its_signature():
    with pin(OP, "alpha", {"block": 5}, problem=problem(sig(1024))):
        assert [block(), block(1025)] == [5, 8]


def test_jit_retraces_for_a_pin_once():
    f, seen = traced_block()
    f(0)
    for _ in range(2):
        with pin(OP, "alpha", {"block": 5}):
            assert int(f(0)) == 5
        assert int(f(0)) == 8
    assert seen == [8, 5]
