"""Shared pieces: a tiny case, a device, and the planted kernels on the path as an installed distribution."""

import importlib
import os
import sys
from pathlib import Path

import pytest

from attn_tune.kernels import registry
from attn_tune.ops.flash_attention.problem import Problem
from attn_tune.schema.device import Device
from attn_tune.schema.environment import Environment
from attn_tune.tuner.plan.case import GridPoint
from attn_tune.tuner.run import process
from attn_tune.tuner.work import side_effects
from tests.patience import PATIENCE_S

PLANTED = Path(__file__).parent.parent / "planted"
PROBLEM = Problem(
    batch=1,
    q_len=16,
    kv_len=16,
    num_q_heads=2,
    num_kv_heads=1,
    head_dim=16,
    v_head_dim=16,
    causal=True,
)


@pytest.fixture(scope="session", autouse=True)
def patient_parents():
    """The end of a process is waited for: one that is killed because it takes long to end is a crash by SIGKILL."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process, "_END_GRACE_S", PATIENCE_S)
        yield


@pytest.fixture(scope="session")
def device() -> Device:
    return Device(platform="cpu", family="x86_64", variant="cpu-x86_64", units=2)


@pytest.fixture(scope="session")
def environment() -> Environment:
    return Environment(jax="0.0", jaxlib="0.0")


@pytest.fixture(scope="session")
def problem() -> Problem:
    return PROBLEM


@pytest.fixture(scope="session")
def point() -> GridPoint:
    return GridPoint(name="tiny", op="flash_attention", signature=PROBLEM.signature)


@pytest.fixture(scope="module")
def planted():
    """The kernels by name, as the registry finds them through their entry point. Much of their harm is a callback."""
    os.environ["PLANTED_CALLBACKS"] = "1"
    side_effects.callbacks_allowed = True
    sys.path.insert(0, str(PLANTED))
    importlib.invalidate_caches()
    registry.clear()
    yield {spec.name: spec for spec in registry.kernels().values()}
    sys.path.remove(str(PLANTED))
    del os.environ["PLANTED_CALLBACKS"]
    side_effects.callbacks_allowed = False
    registry.clear()
