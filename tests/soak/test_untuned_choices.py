"""Problems at random and what jobs on TPUs get for them, by what is expected of it. Compiled they are by the script."""

import itertools

import pytest

from attn_tune.devices.identity import device_from_kind
from attn_tune.kernels.flash_attention._splash import vmem as splash
from attn_tune.kernels.flash_attention.pallas_tpu_flash import vmem as flash
from attn_tune.kernels.knobs import parts_of
from attn_tune.kernels.lang.pallas_tpu.memory import limit_of
from attn_tune.runtime.lookup.dispatch import choose
from attn_tune.tuner.offline.target import TOPOLOGIES
from tests.soak.random_problems import problems
from tests.soak.untuned_choices import random_cases

ESTIMATES = {
    "pallas_tpu_flash": flash.expected_bytes,
    "pallas_tpu_splash": splash.expected_bytes,
    "pallas_tpu_splash_fused": splash.expected_bytes,
}


@pytest.mark.parametrize("seed", range(3))
def test_untuned_launches_of_problems_at_random_are_expected_to_fit(seed):
    kernels = set()
    for case in itertools.islice(random_cases(TOPOLOGIES, seed), 120):
        device = device_from_kind(case.kind)
        choice = choose(case.op, case.direction, case.problem, device=device)
        kernels.add(choice.spec.id)
        if case.op != "flash_attention" or choice.spec.name not in ESTIMATES:
            continue
        for _, launch in parts_of(choice.config):
            needed = ESTIMATES[choice.spec.name](case.problem, launch)
            assert needed <= limit_of(device, launch.vmem_limit_kib), (str(case), launch)
    assert len(kernels) >= 6


def test_problems_of_a_seed_are_the_same_every_time():
    first, again = ([*itertools.islice(problems(7), 50)] for _ in range(2))
    assert first == again
    assert {name for name, _ in first} == {"flash_attention", "block_sparse_attention", "paged_decode", "ragged_paged"}
