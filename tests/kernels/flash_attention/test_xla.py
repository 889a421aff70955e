import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn_tune.kernels.flash_attention.xla import SPEC
from attn_tune.kernels.flash_attention.xla.backward import backward
from attn_tune.kernels.flash_attention.xla.chunks import Grid
from attn_tune.kernels.flash_attention.xla.forward import forward
from attn_tune.kernels.lang.xla.chunks import BackwardConfig, ForwardConfig, infeasible
from attn_tune.ops.flash_attention.features import features, samples
from attn_tune.ops.flash_attention.inputs import make_inputs
from attn_tune.ops.flash_attention.problem import Problem
from attn_tune.ops.flash_attention.reference import baseline
from attn_tune.schema.device import Device
from attn_tune.schema.errors import UsageError
from tests.chosen import chosen
from tests.kernels.flash_attention import dense_numpy
from tests.kernels.flash_attention.dense_inputs import (
    assert_close,
    backward_inputs,
    fast_jit,
    in_float32,
)
from tests.kernels.flash_attention.judged import compare

CPU = Device(platform="cpu", family="x86_64", variant="cpu-x86_64")
GPU = Device(platform="cuda", family="sm_90", variant="nvidia-h200")
PROBLEMS = samples()
# Ragged on both axes, tall, wide, larger than the problem.
CHUNKS = ((32, 16), (13, 48), (64, 29), (128, 128))
GRADIENTS = ("dq", "dk", "dv", "dbias")


def run(p: Problem, inputs, chunks: tuple[int, int]) -> dict[str, jax.Array]:
    config = ForwardConfig(chunk_q=chunks[0], chunk_k=chunks[1])
    out = fast_jit(forward)(p, config, inputs.operands)
    config = BackwardConfig(chunk_q=chunks[1], chunk_k=chunks[0])
    return out | fast_jit(backward)(p, config, inputs)


# Together they have every feature; the others are its variants.
KEPT = (
    "float32", "causal_longer_keys", "causal_longer_queries", "one_key", "window", "narrower_values",
    "lengths_causal", "positions_window", "mask_rows", "bias_keys", "bias_scalar", "gqa_bias_cap",
    "dropout_bias", "sinks_window", "everything",
)  # fmt: skip


@pytest.mark.parametrize("name", chosen(PROBLEMS, KEPT))
def test_matches_the_oracle(name):
    p = in_float32(PROBLEMS[name])
    operands, inputs = backward_inputs(p)
    outputs = run(p, inputs, CHUNKS[list(PROBLEMS).index(name) % len(CHUNKS)])
    expected = dense_numpy.attention(p, operands) | dense_numpy.gradients(p, inputs)
    for key, x in outputs.items():
        assert_close(x, expected[key], relative=2e-5, name=key)
    grads = GRADIENTS if p.bias_dims else GRADIENTS[:3]
    assert tuple(sorted(outputs)) == tuple(sorted(("out", "lse", *grads)))


def test_chunk_lengths_do_not_show():
    p = in_float32(PROBLEMS["everything"])
    _, inputs = backward_inputs(p, seed=2)
    first = run(p, inputs, CHUNKS[0])
    for chunks in CHUNKS[1:3]:
        for key, x in run(p, inputs, chunks).items():
            expected = dense_numpy.as_float64(first[key])
            assert_close(x, expected, relative=1e-5, name=f"{key} {chunks}")


def test_64_bit_types_change_no_dtype():
    p = PROBLEMS["gqa_bias_cap"]
    with jax.enable_x64(True):
        inputs = jax.eval_shape(lambda seed: make_inputs(p, "bwd", seed), 0)
        assert inputs.delta.dtype == inputs.residuals.lse.dtype == jnp.float32
        forward_config = ForwardConfig(chunk_q=32, chunk_k=16)
        backward_config = BackwardConfig(chunk_q=16, chunk_k=32)
        out = jax.eval_shape(lambda x: forward(p, forward_config, x), inputs.operands)
        out |= jax.eval_shape(lambda x: backward(p, backward_config, x), inputs)
    grads = dict.fromkeys(GRADIENTS, p.dtype)
    expected = {"out": p.dtype, "lse": "float32"} | grads
    assert {key: x.dtype.name for key, x in out.items()} == expected


HOST = dataclasses.replace(
    PROBLEMS["everything"],
    dtype="bfloat16",
    has_positions=False,
    has_segments=True,
    precision="default",
)


def _shift_columns(x):
    return None if x is None else jnp.roll(x, 1, axis=-1)


# Each defect is the honest kernel run on a mutated problem or on mutated operands.
DEFECTS = {
    "causal_off_by_one": lambda p, o: (
        dataclasses.replace(p, causal=False, window=(p.window[0], 1)),
        o,
    ),
    "window_off_by_one": lambda p, o: (
        dataclasses.replace(p, window=(p.window[0] - 1, None)),
        o,
    ),
    "top_left_alignment": lambda p, o: (
        dataclasses.replace(p, has_positions=True),
        o._replace(
            q_positions=jnp.tile(jnp.arange(p.q_len), (p.batch, 1)),
            kv_positions=jnp.tile(jnp.arange(p.kv_len), (p.batch, 1)),
        ),
    ),
    "no_scale": lambda p, o: (dataclasses.replace(p, scale=1.0), o),
    "no_cap": lambda p, o: (dataclasses.replace(p, soft_cap=None), o),
    "sink_once_per_chunk": lambda p, o: (p, o._replace(sinks=o.sinks + np.log(3.0))),
    "sink_of_another_head": lambda p, o: (p, o._replace(sinks=jnp.roll(o.sinks, 1))),
    "segments_ignored": lambda p, o: (
        dataclasses.replace(p, has_segments=False),
        o._replace(q_segments=None, kv_segments=None),
    ),
    "mask_shifted": lambda p, o: (p, o._replace(mask=_shift_columns(o.mask))),
    "bias_shifted": lambda p, o: (p, o._replace(bias=_shift_columns(o.bias))),
    "dropout_of_another_head": lambda p, o: (p, o._replace(dropout=o.dropout.at[2].add(1))),
    "dropout_not_rescaled": lambda p, o: (p, o._replace(v=o.v * (1 - p.dropout_rate))),
    "heads_interleaved": lambda p, o: (p, o._replace(q=o.q[:, :, np.array([0, 2, 1, 3])])),
}


@pytest.fixture(scope="module")
def host():
    operands, inputs = backward_inputs(HOST, seed=7)
    exact = dense_numpy.attention(HOST, operands) | dense_numpy.gradients(HOST, inputs)
    exact = {k: jnp.asarray(x, jnp.float32) for k, x in exact.items() if np.ndim(x)}
    plain = fast_jit(baseline)(HOST, "fwd", operands) | fast_jit(baseline)(HOST, "bwd", inputs)
    return inputs, exact, plain


def test_the_host_of_the_defects_passes(host):
    inputs, exact, plain = host
    errors = compare(run(HOST, inputs, (32, 16)), exact, plain)
    assert all(e.ratio <= 1 for e in errors), errors


@pytest.mark.parametrize("name", DEFECTS)
def test_the_rule_catches_planted_defects(name, host):
    inputs, exact, plain = host
    p, operands = DEFECTS[name](HOST, inputs.operands)
    config = ForwardConfig(chunk_q=128, chunk_k=128)
    outputs = fast_jit(forward)(p, config, operands)
    assert max(e.ratio for e in compare(outputs, exact, plain)) > 1
    if name in ("causal_off_by_one", "no_cap", "dropout_of_another_head"):
        config = BackwardConfig(chunk_q=128, chunk_k=128)
        grads = fast_jit(backward)(p, config, inputs._replace(operands=operands))
        for error in compare(grads, exact, plain):
            assert error.ratio > 1, error


def long_problem(length: int, **flags) -> Problem:
    return Problem(
        batch=1,
        q_len=length,
        kv_len=length,
        num_q_heads=1,
        num_kv_heads=1,
        head_dim=16,
        v_head_dim=16,
        dtype="float32",
        causal=True,
        **flags,
    )


def compiled(p: Problem, direction: str, function=None):
    """The compiled direction for shapes alone: no array of this length is ever made."""
    inputs = jax.eval_shape(lambda seed: make_inputs(p, direction, seed), 0)
    call, config = {
        "fwd": (forward, ForwardConfig(chunk_q=64, chunk_k=64)),
        "bwd": (backward, BackwardConfig(chunk_q=64, chunk_k=64)),
    }[direction]
    function = function or (lambda outputs: outputs)
    return jax.jit(lambda x: function(call(p, config, x))).lower(inputs).compile()


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_memory_grows_with_the_length_not_its_square(direction):
    short, long = (compiled(long_problem(n), direction).memory_analysis().temp_size_in_bytes for n in (2048, 4096))
    assert long < 2.2 * short
    assert long < 4096 * 4096


def test_dropped_gradients_cost_nothing():
    p = long_problem(512, bias_dims="b1ts")
    whole = compiled(p, "bwd")
    without_bias = compiled(p, "bwd", lambda grads: {k: grads[k] for k in ("dq", "dk", "dv")})
    dq_alone = compiled(p, "bwd", lambda grads: grads["dq"])
    # The bias itself is carried in any case; its gradient only where it is wanted.
    shape = "f32[1,1,1,512,512]"
    assert (_loop_carry(whole).count(shape), _loop_carry(without_bias).count(shape)) == (2, 1)
    assert dq_alone.cost_analysis()["flops"] < 0.75 * without_bias.cost_analysis()["flops"]


def _loop_carry(executable) -> str:
    """Returns the carried values of a compiled program's one loop, as HLO prints them."""
    (line,) = (x for x in executable.as_text().splitlines() if " while(" in x)
    return line.partition(" while(")[0]


@pytest.mark.parametrize(
    "name", ["plain", "causal", "causal_longer_keys", "causal_longer_queries", "window_left",
             "window_right", "window_zero", "window_longer_queries", "causal_window"]
)  # fmt: skip
@pytest.mark.parametrize("chunks", [(16, 16), (7, 24), (64, 5)])
def test_exactly_the_visible_pairs_are_walked(name, chunks):
    p = dataclasses.replace(PROBLEMS[name], has_sinks=False)
    grid = Grid.of(p, *chunks)
    seen = dense_numpy.visible(p, make_shapes_only(p))[0, 0]
    rows, cols = np.nonzero(seen)
    expected = {(int(i), int(j)) for i, j in zip(rows // grid.q, cols // grid.k, strict=True)}
    pairs = [tuple(int(x) for x in pair) for pair in grid.visible_pairs]
    assert len(pairs) == len(set(pairs))
    assert set(pairs) == expected


def make_shapes_only(p: Problem):
    """Operands of a problem whose visibility depends on no array."""
    from attn_tune.ops.flash_attention.operands import Operands

    return Operands(q=None, k=None, v=None)  # type: ignore[arg-type]


@pytest.mark.parametrize("device", [CPU, GPU], ids=str)
@pytest.mark.parametrize("length", [1, 100, 4096, 131072])
def test_no_chunk_is_longer_than_its_problem(device, length):
    p = dataclasses.replace(long_problem(4096), q_len=length, kv_len=length, num_q_heads=8)
    for direction, search in SPEC.searches.items():
        assert SPEC.unsupported(p, direction, device) is None
        for config in search.candidates[""](p, device):
            assert max(config.chunk_q, config.chunk_k) <= length


def test_infeasible_configs_say_why():
    p = dataclasses.replace(long_problem(8192), batch=32, num_q_heads=32)
    assert "GiB" in infeasible(p, CPU, ForwardConfig(chunk_q=2048, chunk_k=2048))
    long = long_problem(131072)
    assert "pairs" in infeasible(long, CPU, ForwardConfig(chunk_q=64, chunk_k=64))


@pytest.mark.parametrize("value", [0, -64, True, 64.0])
def test_configs_refuse_nonsense(value):
    for config in (ForwardConfig, BackwardConfig):
        with pytest.raises(UsageError, match="chunk_k"):
            config(chunk_q=64, chunk_k=value)


def test_feature_problems_keep_the_flags_and_bite():
    p = dataclasses.replace(
        long_problem(4096, has_sinks=True, soft_cap=30.0, window=(1024, None)),
        num_q_heads=32,
        num_kv_heads=8,
        batch=4,
    )
    variants = features(p)
    for variant in variants:
        # Over one query a causal mask hides nothing.
        assert variant.causal == (variant.q_len > 1)
        assert (variant.has_sinks, variant.group_size) == (True, 4)
        assert variant.window[0] < variant.kv_len
        assert variant.soft_cap == 2.0
        assert variant.head_dim == p.head_dim
    shapes = {(v.q_len > v.kv_len) - (v.q_len < v.kv_len) for v in variants}
    assert shapes == {-1, 0, 1}
