"""Equal configs under the rule of decisions."""

import numpy as np
from aa_rounds import verdicts

from attn_tune.schema import Measurement, Protocol

PROTOCOL = Protocol(timer="fake", warmup=1, flush_l2=True, interleaved=True)


def measured(median, seed):
    noise = np.random.default_rng(seed).normal(0, 0.01, 24)
    samples = tuple(int(median * np.exp(x)) for x in noise)
    return Measurement(samples_ns=samples, protocol=PROTOCOL, round_id="aa")


def test_copies_of_one_config_do_not_differ():
    found = [verdicts([measured(1_000_000, seed) for seed in range(9 * i, 9 * i + 9)]) for i in range(25)]
    assert sum(len(f["ratios"]) for f in found) == 200
    assert sum(f["told_apart"] for f in found) <= 1
    assert not any(f["changed"] for f in found)


def test_a_faster_one_is():
    found = verdicts([measured(1_000_000, 0), measured(900_000, 1), measured(1_000_000, 2)])
    assert found["told_apart"] == 1
    assert found["changed"]
