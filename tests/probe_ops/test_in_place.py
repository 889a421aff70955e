"""Operands that are updated in place: donated in every run, copied before the clock runs, and kept."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn_tune.ops.registry import get_op
from attn_tune.schema import UsageError
from attn_tune.tuner.protocol import ConfigRef
from attn_tune.tuner.work.case_functions import compile_case_functions
from attn_tune.tuner.work.compile import compile_config
from attn_tune.tuner.work.in_place import fresh_copies, leaf_places
from attn_tune.tuner.work.timers.host import HostTimer
from attn_tune.tuner.work.timers.timer import Launch

OP = "probe_recurrent"
TEXT = "probe_recurrent/v1 b=1 t=4 n=1 k=8 v=8 dtype=float32"


@pytest.fixture(scope="module")
def case():
    op = get_op(OP)
    return compile_case_functions(op, op.from_signature(op.parse_signature(TEXT)), "fwd").make(0)


@pytest.fixture(scope="module")
def executable(case):
    ref = ConfigRef(
        kernel=f"{OP}/scan",
        signature=get_op(OP).parse_signature(TEXT),
        direction="fwd",
        config={"step": 1, "defect": ""},
    )
    return compile_config(ref, case.inputs)


def test_a_launch_takes_over_the_buffer_of_the_operand_and_copies_nothing(executable, case):
    inputs = executable.fresh(case.inputs)
    buffer = inputs["state"].unsafe_buffer_pointer()
    outputs = executable.launch(inputs)
    assert inputs["state"].is_deleted()
    assert outputs["state"].unsafe_buffer_pointer() == buffer
    assert not any(inputs[name].is_deleted() for name in "qkvg")


def test_a_call_leaves_its_inputs_as_they_are(executable, case):
    before = np.asarray(case.inputs["state"])
    first, second = (executable.call(case.inputs)["state"] for _ in range(2))
    np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(case.inputs["state"], before)


def test_the_host_timer_gives_every_repeat_a_state_of_its_own_made_before_the_clock_runs(executable, case, monkeypatch):
    seen, made, events = [], [], []
    timed = executable.timed(case.inputs)

    def refresh():
        events.append("copy")
        made.append(timed.refresh())
        return made[-1]

    def run(inputs):
        events.append("run")
        return timed.run(inputs)

    launch = Launch(run=run, refresh=refresh, repeats=3, check=seen.extend)
    HostTimer().sample([launch], None)
    assert events == ["copy"] * 3 + ["run"] * 3
    assert len({id(inputs["state"]) for inputs in made}) == 3
    expected = executable.call(case.inputs)["state"]
    for outputs in seen:
        np.testing.assert_array_equal(outputs["state"], expected)


def test_an_operand_is_found_by_the_last_word_of_its_path():
    inputs = {"operands": {"q": jnp.zeros(1), "cache": jnp.ones(2)}, "seed": jnp.zeros(())}
    assert leaf_places(inputs, ["cache"]) == {"cache": 0}
    with pytest.raises(UsageError, match="operand 'kv' must be one leaf of the inputs"):
        leaf_places(inputs, ["kv"])
    twice = (inputs, inputs)
    with pytest.raises(UsageError, match="operand 'q' must be one leaf"):
        leaf_places(twice, ["q"])


def test_copies_are_other_buffers_with_the_same_bits():
    inputs = {"cache": jnp.array([jnp.nan, 1.0]), "q": jnp.zeros(1)}
    copied = fresh_copies(inputs, (0,))
    assert copied["q"] is inputs["q"]
    assert copied["cache"].unsafe_buffer_pointer() != inputs["cache"].unsafe_buffer_pointer()
    assert jax.device_get(copied["cache"]).tobytes() == jax.device_get(inputs["cache"]).tobytes()
