"""The health probe on a real process, and the gate that asks it."""

import jax
import pytest

from attn_tune.tuner.run.health import Health, HealthGate, UnhealthyError, examine, probe
from tests.patience import PATIENCE_S

WELL = Health(healthy=True, device="gpu H200")
ILL = Health(healthy=False, device="gpu H200", reason="CUDA_ERROR_ECC_UNCORRECTABLE")
QUICK = (0.0, 0.01, 0.01)


class Answers:
    """In the place of a probe: one answer after the other."""

    def __init__(self, *answers: Health):
        self.answers = list(answers)

    def __call__(self, environment, deadline_s, interrupt) -> Health:
        return self.answers.pop(0)


def test_a_device_that_works_is_healthy():
    health = probe({"JAX_PLATFORMS": "cpu"}, PATIENCE_S)
    assert health.healthy, health.reason
    assert health.device.startswith("cpu")
    assert health.seconds > 0


def test_a_device_that_is_not_there_is_unhealthy_and_says_why():
    health = probe({"JAX_PLATFORMS": "no_such_platform"}, PATIENCE_S)
    assert not health.healthy
    assert "no_such_platform" in str(health)


def test_wrong_numbers_are_unhealthy(monkeypatch):
    right = jax.numpy.matmul
    monkeypatch.setattr(jax.numpy, "matmul", lambda a, b: right(a, b).at[3, 4].add(1))
    health = examine()
    assert not health.healthy
    assert health.reason.startswith("1 of ")


def test_a_probe_that_hangs_has_a_deadline(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import time\ntime.sleep(3600)\n")
    health = probe({"PYTHONPATH": str(tmp_path)}, deadline_s=0.0)
    assert not health.healthy
    assert "no answer within 0 s" in health.reason


def test_the_device_is_not_checked_while_no_worker_was_lost():
    HealthGate(ask=Answers()).pass_through()


def test_a_healthy_device_is_asked_once():
    answers = Answers(WELL)
    gate = HealthGate(delays_s=QUICK, ask=answers)
    gate.platform = "cuda"
    gate.suspect()
    gate.pass_through()
    gate.pass_through()
    assert not answers.answers


def test_a_device_may_come_back():
    gate = HealthGate(delays_s=QUICK, ask=Answers(ILL, ILL, WELL))
    gate.suspect()
    gate.pass_through()


def test_a_device_that_stays_away_is_an_error_that_says_what_was_seen():
    gate = HealthGate(delays_s=QUICK, ask=Answers(ILL, ILL, ILL))
    gate.suspect()
    with pytest.raises(UnhealthyError, match="CUDA_ERROR_ECC_UNCORRECTABLE") as caught:
        gate.pass_through()
    assert "in 3 tries" in str(caught.value)


def test_a_cpu_is_not_asked():
    gate = HealthGate(ask=Answers())
    gate.platform = "cpu"
    gate.suspect()
    gate.pass_through()


def test_waiting_can_be_interrupted():
    gate = HealthGate(delays_s=(60.0,), ask=Answers(WELL))
    gate.suspect()
    with pytest.raises(InterruptedError):
        gate.pass_through(lambda: True)
