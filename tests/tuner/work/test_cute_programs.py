"""Programs of the CuTe DSL: the call that must be known before one is loaded, and errors in a line."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

from attn_tune.schema.trial import Resources
from attn_tune.tuner.protocol import Lowered
from attn_tune.tuner.work import cute_programs
from attn_tune.tuner.work.compile import load_config

COLOURED = """
\x1b[91m\x1b[1merror[CONTAINER_STRUCTURE_CHANGED]:\x1b[0m `tile` has another shape at the end of a loop
   \x1b[94m-->\x1b[0m kernel.py:759
    |
757 |     tile = first()
  \x1b[92msuggestion:\x1b[0m Give it one shape.
  \x1b[91merror:\x1b[0m there are no registers
"""


@pytest.mark.parametrize(("backend", "calls"), [("cute", 1), ("triton", 0)])
def test_the_custom_call_of_the_dsl_is_registered_before_its_program_is_loaded(monkeypatch, backend, calls):
    done = []
    monkeypatch.setattr(cute_programs, "register", lambda: done.append(backend))
    exported = export.export(jax.jit(lambda x: {"twice": 2 * x}))(jnp.arange(4.0))
    lowered = Lowered(program=bytes(exported.serialize()), resources=Resources(), lower_ms=1.0, backend=backend)
    outputs = load_config(lowered).call(jnp.arange(4.0))
    np.testing.assert_array_equal(outputs["twice"], 2 * np.arange(4.0))
    assert len(done) == calls


def test_errors_of_the_dsl_are_told_in_a_line_without_colours_and_advice():
    told = "`tile` has another shape at the end of a loop; there are no registers"
    assert cute_programs.in_a_line(COLOURED) == told
    assert cute_programs.in_a_line("head dims differ\n  more") == "head dims differ"


def test_errors_of_kernels_of_other_backends_stay_as_they_are():
    with pytest.raises(AssertionError), cute_programs.plain_errors("triton"):
        raise AssertionError
