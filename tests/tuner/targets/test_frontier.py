"""What one config's shortage says of others."""

from attn_tune.schema.trial import Shortage, Status
from attn_tune.tuner.targets.frontier import Frontier
from attn_tune.tuner.targets.protocol import Compiled

TILE = {"block_q": 512, "block_kv": 512, "layout": "plain"}
LACK = Shortage(resource="vmem", needed=20 << 20, limit=16 << 20)
GROWS = ("block_q", "block_kv")


def failing():
    """A frontier that knows that TILE does not fit."""
    frontier = Frontier(GROWS)
    frontier.add(TILE, Compiled(status=Status.OUT_OF_RESOURCES, reason="vmem", shortage=LACK))
    return frontier


def test_a_larger_config_is_answered_with_the_numbers_of_the_smaller():
    answer = failing().ruled_out({**TILE, "block_kv": 1024})
    assert answer is not None
    assert answer.pruned
    assert (answer.status, answer.shortage) == (Status.OUT_OF_RESOURCES, LACK)
    assert "block_q=512, block_kv=512" in answer.reason
    assert answer.reason.startswith("not compiled")


def test_smaller_and_unlike_configs_are_compiled():
    frontier = failing()
    assert frontier.ruled_out({**TILE, "block_q": 256, "block_kv": 4096}) is None
    assert frontier.ruled_out({**TILE, "block_kv": 1024, "layout": "other"}) is None


def test_only_what_the_compiler_measured_rules_anything_out():
    frontier = Frontier(GROWS)
    for status in (Status.COMPILE_ERROR, Status.TIMED_OUT, Status.COMPILED):
        frontier.add(TILE, Compiled(status=status, reason="x"))
    frontier.add(TILE, Compiled(status=Status.OUT_OF_RESOURCES, reason="without numbers"))
    assert frontier.ruled_out({**TILE, "block_kv": 1024}) is None


def test_a_kernel_that_does_not_say_what_grows_loses_nothing():
    frontier = Frontier(())
    frontier.add(TILE, Compiled(status=Status.OUT_OF_RESOURCES, reason="vmem", shortage=LACK))
    assert frontier.ruled_out(TILE) is None


def test_what_rules_out_sorts_before_what_is_ruled_out():
    frontier = Frontier(GROWS)
    assert frontier.size({**TILE, "block_kv": 1024}) > frontier.size(TILE)
