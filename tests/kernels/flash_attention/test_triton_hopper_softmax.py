"""The online softmax of the forward for Hopper: its device code, run on NumPy's arrays."""

import types

import numpy as np
import pytest

from attn_tune.kernels.lang.gluon.attention import logits

ROWS, KEYS, WIDTH = 64, 128, 16
ABOVE = 2.0**8


class Tensor(np.ndarray):
    """The parts of a tensor's type that the device's functions read."""

    @property
    def type(self):
        return types.SimpleNamespace(layout=None)


def _tensor(x):
    return np.asarray(x, np.float32).view(Tensor)


@pytest.fixture(autouse=True)
def arrays(monkeypatch):
    """The device's functions of tensors, on NumPy's."""
    functions = types.SimpleNamespace(
        where=np.where,
        maximum=np.maximum,
        max=lambda x, axis: x.max(axis),
        sum=lambda x, axis: x.sum(axis),
        exp2=np.exp2,
        arange=lambda begin, end, layout: np.arange(begin, end),
        convert_layout=lambda x, layout: x,
        SliceLayout=lambda axis, layout: None,
        constexpr=int,
    )
    monkeypatch.setattr(logits, "gl", functions)
    for name in ("squash", "sum_in_threads"):
        monkeypatch.setattr(logits, name, getattr(logits, name).fn)


def _walk(tiles, values, *, keeps_maximum, maximum, total):
    """``(out, lse, corrections, largest weight)`` of tiles of base-2 logits, one after the other."""
    plan = types.SimpleNamespace(keeps_maximum=keeps_maximum, late_scale=1.0, fast_tanh=False)
    static = types.SimpleNamespace(
        block_k=KEYS, has_segments=False, keep_threshold=None, logits_dtype="float32",
        dot_scale=1.0, soft_cap=None,
    )  # fmt: skip
    state = (_tensor(np.full(ROWS, maximum)), _tensor(np.full((ROWS, 4), total)))
    acc, corrections, largest = np.zeros((ROWS, WIDTH)), [], 0.0
    for tile, value in zip(tiles, values, strict=True):
        weights, state, correction = logits.softmax_step.fn(
            _tensor(tile), state, None, 0, None, None, (True, False), "none", None, plan, static
        )
        acc = acc * correction[:, None] + weights @ value
        corrections.append(np.asarray(correction))
        largest = max(largest, float(weights.max()))
    total = state[1].sum(1)
    return acc / total[:, None], state[0] + np.log2(total), np.stack(corrections), largest


def _exact(tiles, values, *extra):
    x = np.concatenate([np.concatenate(tiles, 1), *extra], 1).astype(np.float64)
    lse = np.log2(np.exp2(x - x.max(1, keepdims=True)).sum(1)) + x.max(1)
    seen = np.exp2(x[:, : len(tiles) * KEYS] - lse[:, None])
    return seen @ np.concatenate(values).astype(np.float64), lse


def _tiles(step):
    """Logits whose maximum grows by ``step`` from tile to tile."""
    draw = np.random.default_rng(0)
    tiles = [draw.normal(size=(ROWS, KEYS)) + step * i for i in range(6)]
    return tiles, [draw.normal(size=(KEYS, WIDTH)) for _ in tiles]


@pytest.mark.parametrize("keeps_maximum", [False, True])
@pytest.mark.parametrize("step", [-30.0, -1.0, 0.0, 1.0, 5.0, 7.0, 9.0, 30.0])
def test_a_softmax_by_tiles_is_right_for_any_moves_of_the_maximum(step, keeps_maximum):
    tiles, values = _tiles(step)
    out, lse, _, largest = _walk(tiles, values, keeps_maximum=keeps_maximum, maximum=-np.inf, total=0.0)
    wanted, wanted_lse = _exact(tiles, values)
    np.testing.assert_allclose(out, wanted, rtol=2e-4, atol=2e-5)
    np.testing.assert_allclose(lse, wanted_lse, rtol=1e-5, atol=1e-5)
    assert largest <= (ABOVE if keeps_maximum else 1.0)


def test_a_maximum_that_is_kept_corrects_nothing_and_one_that_jumps_does():
    tiles, values = _tiles(5.0)
    start = {"maximum": -np.inf, "total": 0.0}
    _, _, kept, largest = _walk(tiles, values, keeps_maximum=True, **start)
    _, _, moved, _ = _walk(tiles, values, keeps_maximum=False, **start)
    # The first tile has nothing before it that counts.
    assert (kept[1:] == 1.0).mean() > 0.4
    assert (kept[1:] < 2.0**-8).any()
    assert (moved[1:] == 1.0).mean() < 0.1
    assert largest > 1.0


@pytest.mark.parametrize("sink", [-20.0, 0.0, 20.0])
@pytest.mark.parametrize("keeps_maximum", [False, True])
def test_a_sink_is_the_first_logit_seen(sink, keeps_maximum):
    tiles, values = _tiles(3.0)
    out, lse, _, _ = _walk(tiles, values, keeps_maximum=keeps_maximum, maximum=sink, total=0.25)
    wanted, wanted_lse = _exact(tiles, values, np.full((ROWS, 1), sink))
    np.testing.assert_allclose(out, wanted, rtol=2e-4, atol=2e-5)
    np.testing.assert_allclose(lse, wanted_lse, rtol=1e-5, atol=1e-5)
