"""Configs that did not fit answer for larger ones."""

from attn_tune.schema.trial import Shortage, Status
from attn_tune.tuner.offline.compilers.protocol import Compiled
from attn_tune.tuner.offline.oversized import Oversized

TILE = {"block_q": 512, "block_kv": 512, "layout": "plain"}
LACK = Shortage(resource="vmem", needed=20 << 20, limit=16 << 20)
GROWS = ("block_q", "block_kv")


def failing():
    """Remembers that TILE does not fit."""
    oversized = Oversized(GROWS)
    oversized.note(TILE, Compiled(status=Status.OUT_OF_RESOURCES, reason="vmem", shortage=LACK))
    return oversized


def test_a_larger_config_is_answered_with_the_numbers_of_the_smaller():
    answer = failing().answer({**TILE, "block_kv": 1024})
    assert answer is not None
    assert answer.pruned
    assert (answer.status, answer.shortage) == (Status.OUT_OF_RESOURCES, LACK)
    assert "block_q=512, block_kv=512" in answer.reason
    assert answer.reason.startswith("not compiled")


def test_smaller_and_unlike_configs_are_not_ruled_out():
    oversized = failing()
    assert oversized.answer({**TILE, "block_q": 256, "block_kv": 4096}) is None
    assert oversized.answer({**TILE, "block_kv": 1024, "layout": "other"}) is None


def test_only_a_shortage_with_numbers_rules_configs_out():
    oversized = Oversized(GROWS)
    for status in (Status.COMPILE_ERROR, Status.TIMED_OUT, Status.COMPILED):
        oversized.note(TILE, Compiled(status=status, reason="x"))
    oversized.note(TILE, Compiled(status=Status.OUT_OF_RESOURCES, reason="without numbers"))
    assert oversized.answer({**TILE, "block_kv": 1024}) is None


def test_a_kernel_that_does_not_say_what_grows_loses_nothing():
    oversized = Oversized(())
    oversized.note(TILE, Compiled(status=Status.OUT_OF_RESOURCES, reason="vmem", shortage=LACK))
    assert oversized.answer(TILE) is None


def test_a_config_sorts_before_those_that_it_rules_out():
    oversized = Oversized(GROWS)
    assert oversized.size({**TILE, "block_kv": 1024}) > oversized.size(TILE)
