"""Runs TPU kernels on the CPU in Pallas' TPU interpreter, with its detectors of races and stray reads on."""

import dataclasses
import functools
import types

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from attn_tune.ops.contract import load

# Uninitialised memory is NaN, a read past a buffer raises, and grid axes called parallel are walked in random order.
STRICT = pltpu.InterpretParams(
    detect_races=True, out_of_bounds_reads="raise", uninitialized_memory="nan", random_seed=7
)


def run(spec, direction, problem, config, inputs):
    """The outputs of one direction.

    Raises:
      AssertionError: the interpreter saw a race.
    """
    from jax._src.pallas.mosaic.interpret import interpret_pallas_call as interpreter

    call = load(spec.searches[direction].call)
    interpreter.reset_tpu_interpret_mode_state()
    with pltpu.force_tpu_interpret_mode(STRICT):
        outputs = jax.jit(lambda x: call(problem, config, x))(inputs)
        jax.block_until_ready(outputs)
    # Newer releases raise by themselves.
    assert interpreter.races is not None
    assert not interpreter.races.races_found
    return outputs


def run_discharged(spec, problem, config, inputs, monkeypatch):
    """The outputs of a forward over the ragged kernel in Pallas' other interpreter: that for TPU reshapes no refs.

    It knows neither cores nor races.
    """
    from jax._src.literals import TypedInt

    from attn_tune.kernels.lang.pallas_tpu.ragged import launch

    names = {name: getattr(pl, name) for name in dir(pl) if not name.startswith("__")}
    interpreting = types.SimpleNamespace(**names | {"pallas_call": functools.partial(pl.pallas_call, interpret=True)})
    monkeypatch.setattr(launch, "pl", interpreting)
    # JAX 0.12 asks a constant index for the shape that such integers lack.
    monkeypatch.setattr(TypedInt, "shape", (), raising=False)
    call = load(spec.searches["fwd"].call)
    return jax.jit(lambda x: call(problem, config, x))(inputs)


def run_viewed(spec, problem, config, inputs, monkeypatch):
    """The outputs of a forward over tokamax's batched kernel, which reshapes and bitcasts references.

    Races are not looked for: the interpreter knows the accesses of plain references alone.
    """
    from tests.kernels.tpu_views import allow_views

    allow_views(monkeypatch)
    info = pltpu.get_tpu_info_for_chip(pltpu.ChipVersion.TPU_V6E, 1)
    monkeypatch.setattr(pltpu, "get_tpu_info", lambda: info)
    call = load(spec.searches["fwd"].call)
    with pltpu.force_tpu_interpret_mode(dataclasses.replace(STRICT, detect_races=False)):
        return jax.block_until_ready(jax.jit(lambda x: call(problem, config, x))(inputs))
