"""The fused backward for Hopper, as far as it goes without one: what it refuses and tries, and its masks on NumPy."""

import dataclasses
import itertools
import types

import jax.numpy as jnp
import numpy as np
import pytest

from attn_tune.kernels.flash_attention.triton_hopper_fused import SPEC, logits, tiles
from attn_tune.kernels.flash_attention.triton_hopper_fused.plan import num_tiles, plan_of, shared_bytes
from attn_tune.kernels.lang.gluon import device as gluon_device
from attn_tune.kernels.lang.triton.device.ranges import row_ranges
from attn_tune.kernels.lang.triton.device.static import static_of
from attn_tune.ops.flash_attention.dropout import keep_mask
from attn_tune.ops.flash_attention.features import samples
from attn_tune.ops.flash_attention.problem import Problem
from attn_tune.schema.device import Device
from attn_tune.schema.errors import UsageError
from tests.chosen import chosen
from tests.kernels.flash_attention.hopper_builds import BUILDS, KEPT
from tests.kernels.scripts import builds, built
from tests.ops.cases import ON_HOPPER

H200 = Device(platform="cuda", family="sm_90", variant="nvidia-h200", units=132)
SEARCH = SPEC.searches["bwd"]


def problem(B=4, T=4096, S=None, N=16, K=16, H=128, V=None, **flags):
    return Problem(
        batch=B, q_len=T, kv_len=S or T, num_q_heads=N, num_kv_heads=K, head_dim=H, v_head_dim=V or H,
        scale=flags.pop("scale", H**-0.5), **flags,
    )  # fmt: skip


def config(p, **knobs):
    return dataclasses.replace(SEARCH.heuristic(p, H200), **knobs)


@pytest.mark.parametrize(
    ("p", "device", "words"),
    [
        (problem(), Device(platform="cuda", family="sm_80", variant="nvidia-a100"), "sm_80"),
        (problem(), Device(platform="cuda", family="sm_100", variant="nvidia-b200"), "sm_100"),
        (problem(), Device(platform="cpu", family="x86_64", variant="cpu-x86_64"), "x86_64"),
        (problem(dtype="float32"), H200, "float32"),
        (problem(H=96), H200, "64, 128, 256"),
        (problem(H=128, V=64), H200, "differ"),
        (problem(mask_dims="b1ts"), H200, "mask"),
        (problem(bias_dims="1nts"), H200, "bias"),
        (problem(has_positions=True), H200, "positions"),
        (problem(scale=-1.0), H200, "positive"),
    ],
)
def test_a_problem_that_the_fused_backward_for_hopper_cannot_do_has_a_reason(p, device, words):
    assert words in SPEC.unsupported(p, "bwd", device)


def test_most_samples_are_taken_at_its_head_dims():
    wide = {name: dataclasses.replace(p, head_dim=64, v_head_dim=64) for name, p in samples().items()}
    taken = {name for name, p in wide.items() if SPEC.unsupported(p, "bwd", H200) is None}
    assert taken >= {
        "causal_window_segments",
        "dropout_gqa",
        "lengths_causal",
        "lse_gradient",
        "sinks_window",
        "soft_cap",
    }


@pytest.mark.parametrize(
    "knobs", [{"block_q": 96}, {"block_k": 32}, {"num_stages": 0}, {"num_programs": 0}, {"ahead": 1}]
)
def test_a_knob_outside_its_range_is_named(knobs):
    with pytest.raises(UsageError, match=next(iter(knobs))):
        config(problem(), **knobs)


@pytest.mark.parametrize("p", [p for p in ON_HOPPER.values() if SPEC.unsupported(p, "bwd", H200) is None])
def test_all_candidates_fit(p):
    candidates = SEARCH.candidates[""](p, H200)
    assert candidates[0] == SEARCH.heuristic(p, H200)
    assert len(candidates) >= 3
    assert max(shared_bytes(p, c) for c in candidates) <= 232448


def test_a_config_that_does_not_fit_is_refused_with_figures():
    p = problem()
    assert "232448" in SEARCH.infeasible(p, H200, config(p, num_stages=5))
    assert "320 registers" in SEARCH.infeasible(p, H200, config(p, block_q=128, num_stages=1, staged_dq=False))
    wide = problem(H=256)
    assert "registers" in SEARCH.infeasible(wide, H200, config(wide, block_k=128, num_stages=1, staged_dq=False))
    narrow = problem(H=64)
    assert "32 columns" in SEARCH.infeasible(narrow, H200, config(narrow, block_q=64))
    fewer = dataclasses.replace(H200, variant="nvidia-h100-pcie", units=114)
    assert "114" in SEARCH.infeasible(p, fewer, config(p))
    assert SEARCH.adapt(p, problem(B=1, N=2, K=2, T=300), H200, config(p)).num_programs == 6


class Tensor(np.ndarray):
    """The parts of a tensor that the device's functions use."""

    @property
    def type(self):
        return types.SimpleNamespace(layout=None)

    def to(self, dtype):
        return self if dtype is None else self.astype(dtype)


def _tensor(x, dtype=None):
    return np.asarray(x, dtype).view(Tensor)


@dataclasses.dataclass
class Pointer:
    """A pointer into an array, or several."""

    array: np.ndarray
    offset: Tensor = dataclasses.field(default_factory=lambda: _tensor(0))

    def __add__(self, offset):
        return Pointer(self.array, self.offset + offset)

    def load(self, mask=True, other=0):
        inside = np.where(mask, self.offset, 0)
        return _tensor(np.where(mask, self.array.reshape(-1)[inside], other))


@dataclasses.dataclass
class Shared:
    """A tile of numbers in shared memory."""

    array: np.ndarray

    def reshape(self, shape):
        return Shared(self.array.reshape(shape))

    def load(self, layout):
        return _tensor(self.array)


@pytest.fixture
def arrays(monkeypatch):
    """The device's functions, on NumPy's arrays."""
    for name in ("_ROWS", "FACTOR", "ROW_FACTOR", "COLUMN_FACTOR"):
        monkeypatch.setattr(logits, name, getattr(logits, name).value)
    functions = types.SimpleNamespace(
        where=lambda c, a, b: _tensor(np.where(c, a, b)), minimum=np.minimum, maximum=np.maximum, exp2=np.exp2,
        arange=lambda begin, end, layout: _tensor(np.arange(begin, end)), SliceLayout=lambda axis, layout: None,
        load=Pointer.load, constexpr=int, int64=None, uint32=np.uint32,
    )  # fmt: skip
    for module in (tiles, logits):
        monkeypatch.setattr(module, "gl", functions)
    monkeypatch.setattr(tiles, "WIDTH", tiles.WIDTH.value)
    monkeypatch.setattr(tiles, "_owner_of", tiles._owner_of.fn)
    monkeypatch.setattr(logits, "mix", gluon_device.mix.fn)


def _visible(p, ids, lengths):
    """``[B, T, S]``: the keys that a row sees."""
    row, key = np.arange(p.q_len)[:, None] + p.offset, np.arange(p.kv_len)[None]
    left, right = p.bounds
    seen = np.ones((p.batch, p.q_len, p.kv_len), bool)
    seen &= True if right is None else key <= row + right
    seen &= True if left is None else key >= row - left
    if ids is not None:
        seen &= ids[0][:, :, None] == ids[1][:, None, :]
    return seen if lengths is None else seen & (key < lengths[:, None, None])


@pytest.mark.parametrize(("block_q", "block_k"), chosen([(64, 64), (64, 128), (128, 128)], [(64, 128)]))
@pytest.mark.parametrize(
    ("flags", "runs", "lengths"),
    [
        ({}, None, None),
        ({"T": 300, "S": 200}, None, None),
        ({"causal": True, "T": 300, "S": 450}, None, None),
        ({"causal": True, "T": 450, "S": 300}, None, None),
        ({"window": (70, 20), "T": 500}, None, None),
        ({"causal": True, "window": (150, None), "T": 500}, None, None),
        ({"has_segments": True, "T": 640}, 3, None),
        ({"has_segments": True, "T": 500, "causal": True}, 9, None),
        ({"has_segments": True, "has_lengths": True, "T": 300}, None, (300, 131)),
        ({"has_segments": True, "has_lengths": True, "T": 300, "causal": True}, None, (1, 256)),
    ],
)
def test_walks_make_the_weights_of_all_visible_pairs_and_no_others(arrays, block_q, block_k, flags, runs, lengths):
    p = problem(**{"B": 2, "N": 4, "K": 2, "T": 256, "H": 64, **flags})
    masked = dataclasses.replace(p, has_segments=runs is not None, has_lengths=False)
    c = config(p, block_q=block_q, block_k=block_k, late_dq=block_k > 64)
    static = static_of(masked, c, ranges=True)
    plan = plan_of(p, c, static)
    rng = np.random.default_rng(0)
    ids = ranges = None
    if runs is not None:
        cuts = [np.sort(rng.integers(0, p.q_len, runs)) for _ in range(p.batch)]
        own = np.stack([np.searchsorted(c, np.arange(p.q_len), side="right") for c in cuts]).astype(np.int32)
        ids = (own, own)
        ranges = Pointer(np.asarray(row_ranges(jnp.asarray(own), jnp.asarray(own), static)))
    counted = None if lengths is None else np.asarray(lengths)
    logit = rng.normal(size=(p.batch, p.num_q_heads, p.kv_len, plan.padded_q))
    found = np.zeros_like(logit)
    for tile in range(num_tiles(p, c)):
        bounds = tiles.load_bounds.fn(
            _tensor(tile), ranges, None if counted is None else Pointer(counted), plan, static
        )
        walk = tiles.walk_of.fn(_tensor(tile), bounds, plan, static)
        for step in range(int(tiles.steps_of.fn(walk, static))):
            block, head = tiles.place_of.fn(_tensor(step), walk, static)
            own_keys = range(int(walk.block) * block_k, min((int(walk.block) + 1) * block_k, p.kv_len), 64)
            own_rows = range(int(block) * block_q, (int(block) + 1) * block_q, plan.rows)
            for key, row in itertools.product(own_keys, own_rows):
                place = (int(walk.batch), int(head), slice(key, key + 64), slice(row, row + plan.rows))
                index = _tensor(np.arange(key, key + 64))
                segment = None if ids is None else _tensor(np.pad(ids[1][place[0]], (0, 128))[key : key + 64])
                columns = logits.Columns(index, segment, index)
                part, own = np.zeros((64, plan.rows)), logit[place]
                part[: len(own)] = own
                own_ids = None if ids is None else Shared(np.pad(ids[0][place[0]], (0, 128))[row : row + plan.rows])
                made = logits.weights_of.fn(
                    _tensor(part), np.zeros(plan.rows), columns, block, row, walk, own_ids, plan, static
                )
                found[place] += made[: len(own)]
    seen = _visible(p, ids, counted)[:, None].swapaxes(2, 3)
    expected = np.where(seen, np.exp2(logit[..., : p.q_len] * plan.late_scale), 0)
    np.testing.assert_allclose(found[..., : p.q_len], expected, rtol=1e-6)


def test_the_fused_backward_for_hopper_drops_the_weights_that_the_op_drops(arrays):
    p = problem(B=2, T=200, N=4, K=2, H=64, dropout_rate=0.3)
    c = config(p, block_q=64)
    static = static_of(p, c)
    words = jnp.asarray([5, 3, 7], jnp.uint32)
    rows, keys = np.arange(128, 192)[None], np.arange(64, 128)[:, None]
    expected = np.asarray(keep_mask(words, 0.3, batch=1, head=3, row=rows, col=keys))
    with np.errstate(over="ignore"):
        seeds = logits.load_seeds.fn(Pointer(np.asarray(words)), _tensor(1, np.uint32), static)
        columns = logits.load_columns.fn(_tensor(64), _tensor(1), None, None, static)
        kept = logits.kept.fn(_tensor(128), _tensor(3), columns, seeds, None, plan_of(p, c, static), static)
    np.testing.assert_array_equal(kept, expected)


@pytest.mark.slow
@builds(KEPT, BUILDS)
def test_builds_of_the_fused_backward_for_hopper_fit_and_wait_for_no_single_instruction(names):
    found = built("tests.kernels.flash_attention.hopper_builds", *names)
    assert [build["name"] for build in found] == names
    for build in found:
        assert build["spills"] <= 500, build
        assert build["counted"] - 1024 < build["shared"] <= build["counted"], build
        assert build["products"] > 0 < build["copies"], build
        # Six in a step, of two groups of warps. Where ptxas finds no registers it waits after each of the products.
        assert build["waits"] <= 16 < build["products"], build
    assert [b["name"] for b in found if not b["added"]] == ["h128 behind, from registers"]
