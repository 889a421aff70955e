"""Arrays, meshes and comparisons of ``automatic_program.py``."""

import re

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

from attn_tune.api.flash_attention import flash_attention
from attn_tune.ops.masks.mask_info import MaskInfo
from attn_tune.runtime.lookup import dispatch

B, T, S, N, K, H = 4, 6, 9, 4, 2, 8
BY_HEADS = P("data", None, "model")
EVERYWHERE = P()
DIFFERENTIABLE = ("query", "key", "value", "bias", "softmax_aux")


def mesh_of(kind, shape=(4, 2)):
    return jax.make_mesh(shape, ("data", "model"), axis_types=(kind,) * 2)


AUTO, EXPLICIT = mesh_of(AxisType.Auto), mesh_of(AxisType.Explicit)


def draw(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def ints(seed, high, *shape):
    return np.sort(np.random.default_rng(seed).integers(0, high, shape, np.int32), axis=-1)


def base(heads=N, kv_heads=K):
    return {
        "query": (draw(1, B, T, heads, H), BY_HEADS),
        "key": (draw(2, B, S, kv_heads, H), BY_HEADS if kv_heads % 2 == 0 else P("data")),
        "value": (draw(3, B, S, kv_heads, H), BY_HEADS if kv_heads % 2 == 0 else P("data")),
    }


def call(arrays, options):
    arrays = dict(arrays)
    if "lengths" in arrays:
        t, s = arrays["query"].shape[1], arrays["key"].shape[1]
        arrays["mask_info"] = MaskInfo.from_lengths(arrays.pop("lengths"), q_len=t, kv_len=s)
    if "q_positions" in arrays:
        arrays["mask_info"] = MaskInfo(q_positions=arrays.pop("q_positions"), kv_positions=arrays.pop("kv_positions"))
    return flash_attention(**arrays, **options)


def graded(function, arrays):
    """Outputs and the gradients of what has any, of a sum that weighs every element differently."""
    free = {name: x for name, x in arrays.items() if name in DIFFERENTIABLE}

    def loss(free):
        outputs = jax.tree.leaves(function(arrays | free))
        # Rows that see nothing have an lse of minus infinity.
        finite = (jnp.where(jnp.isneginf(x), 0.0, x) for x in outputs)
        return sum(jnp.sum(jnp.cos(x * 1.3)) for x in finite), outputs

    return jax.value_and_grad(loss, has_aux=True)(free)


def difference(got, want):
    """The largest difference, of numbers that are large as a share of the largest."""

    def gap(a, b):
        a, b = np.asarray(a, np.float32), np.asarray(b, np.float32)
        with np.errstate(invalid="ignore"):
            gaps = np.where(a == b, 0.0, np.abs(a - b))
        largest = np.abs(b[np.isfinite(b)]).max(initial=1.0)
        return float(gaps.max() / largest)

    pairs = zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True)
    return max(gap(a, b) for a, b in pairs)


def put(arrays, mesh):
    return {name: jax.device_put(x, NamedSharding(mesh, spec)) for name, (x, spec) in arrays.items()}


def whole(arrays):
    return {name: jnp.asarray(x) for name, (x, _) in arrays.items()}


class Lookups:
    """The local shapes that lookups ask for within a ``with`` block."""

    def __enter__(self):
        self.seen, self.choose = [], dispatch.choose

        def spy(op, direction, problem, **rest):
            choice = self.choose(op, direction, problem, **rest)
            self.seen.append(((problem.batch, problem.num_q_heads, problem.num_kv_heads), choice))
            return choice

        dispatch.choose = spy
        return self

    def __exit__(self, *_):
        dispatch.choose = self.choose

    @property
    def shapes(self):
        return sorted({shape for shape, _ in self.seen})


def gathers(compiled):
    return len(re.findall(r" all-gather(?:-start)?\(", compiled.as_text()))
