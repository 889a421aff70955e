"""Random data for one call: what a model would pass, made on the device."""

# JAX declares no types of some functions that stand here.
# pyright: reportUnknownMemberType=false

import math
from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from attn_tune.ops.fields.long_keys import key_factors
from attn_tune.ops.fields.rounding import round_to
from attn_tune.ops.fields.unusual_values import without_first_sink
from attn_tune.ops.flash_attention.operands import BackwardInputs, Operands, Residuals
from attn_tune.ops.flash_attention.problem import Problem
from attn_tune.ops.flash_attention.reference import reference
from attn_tune.ops.masks.mask_info import KV_PADDING, Q_PADDING
from attn_tune.ops.typed_jax import jit

# A standard normal is above this four times in five.
VISIBLE_ABOVE = -0.8416
TOKENS_PER_DOCUMENT = 1024
MIN_DOCUMENTS, MAX_DOCUMENTS = 3, 64
# Ids of odd seeds are multiples of it: in 8 or 16 bits they would all be alike.
_ID_STEP = 2**24
# Positions of odd seeds begin here: their lower 16 bits become negative after a hundred tokens.
_FAR_POSITION = 2**20 + 2**15 - 100
SHARED_LENGTHS = (2**12, 2**16, 2**20)
# Added to the bias of a row: the exponential of minus its lse overflows.
_LOW_BIAS, _LOW_ROW_EVERY = -100.0, 7


def make_inputs(problem: Problem, direction: str, seed: int) -> Operands | BackwardInputs:
    """Inputs of one call, the same for the same seed; may be called under ``jit``.

    For ``bwd`` the residuals come from the reference, rounded as a kernel would store them, the cotangent of the output
    is standard normal, and ``delta`` is computed from the rounded output, with a cotangent of the lse if the problem
    has one.
    """
    p, dtype, operands = problem, jnp.dtype(problem.dtype), make_operands(problem, direction, seed)
    if direction == "fwd":
        return operands
    exact, dout_key = _reference(p, "fwd", operands), _random_keys(seed)[-1]
    inputs = backward_inputs(operands, exact, _normal(dout_key, exact["out"].shape, dtype))
    if p.has_lse_gradient:
        dlse = jax.random.normal(jax.random.fold_in(dout_key, 1), inputs.delta.shape)
        delta = jnp.where(jnp.isneginf(inputs.residuals.lse), 0.0, inputs.delta - dlse)
        inputs = inputs._replace(delta=delta)
    return inputs


def make_operands(problem: Problem, direction: str, seed: int | Array) -> Operands:
    """Operands of one call, as ``make_inputs``, without residuals and cotangents.

    Queries, keys, values and bias are standard normal. Odd seeds have some keys that are much longer, so that the
    running maximum of a row moves late and far, and in 16 bits the exponential of a logit would overflow; but not
    under a soft cap, near which it would show what kernels approximate, nor in the backward of float32, of rounded
    logits or of one query. But for these backwards some rows of a bias that differs by row are low. Segments and
    positions are those of documents packed end to end, with padding at the end of the row, and their offsets; without
    offsets odd seeds have two ids that take turns, both negative and far from zero, and positions beyond 16 bits. Or,
    with lengths, that padding alone, whose keys and values are not numbers. Queries are aligned with keys at the bottom
    right. Sinks are large enough to take a sizeable share of the softmax; of odd seeds the first is none.
    """
    q_key, k_key, v_key, bias_key, mask_key, doc_key, sink_key, seed_key, _ = _random_keys(seed)
    p, dtype = problem, jnp.dtype(problem.dtype)
    documents = _documents(doc_key, p) if p.has_segments or p.has_positions else None
    lengths = _lengths(doc_key, p) if p.has_lengths else None
    operands = Operands(
        q=_normal(q_key, (p.batch, p.q_len, p.num_q_heads, p.head_dim), dtype),
        k=_keys(k_key, p, direction, seed),
        v=_normal(v_key, (p.batch, p.kv_len, p.num_kv_heads, p.v_head_dim), dtype),
        bias=None if p.bias_dims is None else _bias(bias_key, p, p.bias_dims, direction, seed),
        mask=None if p.mask_dims is None else _mask(mask_key, p),
        sinks=_sinks(sink_key, p, seed) if p.has_sinks else None,
        dropout=_dropout_words(seed_key) if p.dropout_rate > 0 else None,
    )
    if documents is not None and p.has_segments:
        q_ids, kv_ids = (x[:, -n:] for x, n in zip(documents[:2], (p.q_len, p.kv_len), strict=True))
        if not p.has_offsets:
            q_ids, kv_ids = (_renamed(ids, seed) for ids in (q_ids, kv_ids))
        operands = operands._replace(q_segments=q_ids, kv_segments=kv_ids)
    if documents is not None and p.has_offsets:
        q_offsets, kv_offsets = (_cut(documents[3], p, n) for n in (p.q_len, p.kv_len))
        operands = operands._replace(q_offsets=q_offsets, kv_offsets=kv_offsets)
    if lengths is not None:
        counted = jnp.arange(p.kv_len) < lengths[:, None]
        behind = ~counted[:, :, None, None]
        operands = operands._replace(
            k=jnp.where(behind, jnp.nan, operands.k),
            v=jnp.where(behind, jnp.nan, operands.v),
            q_segments=jnp.zeros((p.batch, p.q_len), jnp.int32),
            kv_segments=jnp.where(counted, 0, KV_PADDING),
            kv_lengths=lengths,
        )
    if documents is not None and p.has_positions:
        # With offsets a position is that of a token in its sequence.
        far = 0 if p.has_offsets else jnp.where(seed % 2 == 1, _FAR_POSITION, 0)
        positions = documents[2] + far
        operands = operands._replace(q_positions=positions[:, -p.q_len :], kv_positions=positions[:, -p.kv_len :])
    return operands


def backward_inputs(operands: Operands, exact: Mapping[str, Array], dout: Float[Array, "B T N V"]) -> BackwardInputs:
    """Builds ``BackwardInputs``: the ``exact`` answers rounded as a kernel would store them, and ``delta`` of those.

    Args:
      exact: ``out`` [B, T, N, V] and ``lse`` [B, N, T], as from ``reference``.
      dout: the cotangent, in the dtype that the output is stored in.
    """
    out = round_to(exact["out"], dout.dtype).astype(dout.dtype)
    wide = (x.astype(jnp.float32) for x in (out, dout))
    delta = jnp.einsum("btnv,btnv->bnt", *wide, precision="highest")
    return BackwardInputs(operands, Residuals(out, exact["lse"].astype(jnp.float32)), dout, delta)


_reference = jit(reference, static_argnums=(0, 1))


def _random_keys(seed: int | Array) -> Array:
    return jax.random.split(jax.random.key(seed), 9)


def _normal(key: Array, shape: tuple[int, ...], dtype: jnp.dtype) -> Array:
    # Compiling a generator takes a second; small arrays of many shapes share those of a few lengths.
    size = math.prod(shape)
    if size > SHARED_LENGTHS[-1]:
        drawn = jax.random.normal(key, shape, dtype).astype(jnp.float32)
    else:
        length = next(n for n in SHARED_LENGTHS if n >= size)
        drawn = jax.random.normal(key, (length,), jnp.float32)[:size].reshape(shape)
    return round_to(drawn, dtype).astype(dtype)


def _keys(key: Array, p: Problem, direction: str, seed: int | Array) -> Array:
    keys = _normal(key, (p.batch, p.kv_len, p.num_kv_heads, p.head_dim), jnp.dtype(p.dtype))
    if p.soft_cap is not None or not _takes_large_logits(p, direction):
        return keys
    factors = key_factors(jnp.arange(p.kv_len), seed, little=p.dtype == "float32")
    # Rounded explicitly, as all: the compiler would leave it out between two operations, and residuals are of these.
    return round_to(keys * factors[:, None, None], keys.dtype).astype(keys.dtype)


def _bias(key: Array, p: Problem, dims: str, direction: str, seed: int | Array) -> Float[Array, "_b _n _t _s"]:
    bias = _normal(key, _extent(p, dims), jnp.dtype(p.dtype))
    if "t" not in dims or not _takes_large_logits(p, direction):
        return bias
    is_low = (jnp.arange(p.q_len) % _LOW_ROW_EVERY == 0) & (seed % 2 == 1)
    return round_to(bias + jnp.where(is_low, _LOW_BIAS, 0.0)[:, None], bias.dtype).astype(bias.dtype)


def _takes_large_logits(p: Problem, direction: str) -> bool:
    """False for a backward whose logits, formed a second time, round too far apart from those of the lse.

    And for that of one query: where it sees one key alone its gradients are differences of equal numbers.
    """
    return direction == "fwd" or (p.dtype != "float32" and p.logits_dtype == "float32" and p.q_len > 1)


def _renamed(ids: Int[Array, "B L"], seed: int | Array) -> Int[Array, "B L"]:
    """For odd seeds two negative ids in turns in place of 1, 2, 3 and so on; padding stays."""
    turns = jnp.where(ids % 2 == 1, -2 * _ID_STEP, -_ID_STEP)
    return jnp.where((ids < Q_PADDING) & (seed % 2 == 1), turns, ids)


def _extent(p: Problem, dims: str) -> tuple[int, ...]:
    sizes = {"b": p.batch, "n": p.num_q_heads, "t": p.q_len, "s": p.kv_len, "1": 1}
    return tuple(sizes[d] for d in dims)


def _mask(key: Array, p: Problem) -> Bool[Array, "_b _n _t _s"]:
    # Key 0 stays visible so that most rows of a causal call see something; a mask without a key axis hides whole rows.
    shape = _extent(p, p.mask_dims or "1111")
    mask = _normal(key, shape, jnp.dtype(jnp.float32)) > VISIBLE_ABOVE
    return mask.at[..., 0].set(True) if shape[3] > 1 else mask.at[:, :, -1].set(True)


def _sinks(key: Array, p: Problem, seed: int | Array) -> Array:
    left, right = p.bounds
    reach = (p.kv_len if left is None else left + 1) + (right or 0)
    visible = jnp.float32(min(p.kv_len, reach))
    drawn = jnp.log(visible) + _normal(key, (p.num_q_heads,), jnp.dtype(jnp.float32))
    return without_first_sink(drawn, seed % 2 == 1)


def _dropout_words(key: Array) -> Array:
    seed = jax.random.bits(key, (), jnp.uint32)
    # Of a shard that begins with this batch entry and head, as calls over a mesh have them.
    return jnp.stack([seed, jnp.uint32(6), jnp.uint32(24)])


def _lengths(key: Array, p: Problem) -> Int[Array, " B"]:
    """From half of the keys to all. Of a small batch, which is there for its edges, the last entry has none."""
    lengths = jax.random.randint(key, (p.batch,), (p.kv_len + 1) // 2, p.kv_len + 1, jnp.int32)
    # A lone entry without keys would leave nothing to compare or to time.
    return lengths.at[-1].set(0) if p.batch > 1 and p.kv_len < TOKENS_PER_DOCUMENT else lengths


def _cut(offsets: Int[Array, "1 R"], p: Problem, length: int) -> Int[Array, " R"]:
    """Offsets of documents of a packed row, as those of its last ``length`` tokens."""
    return jnp.maximum(offsets[0] - (max(p.q_len, p.kv_len) - length), 0)


def _documents(
    key: Array, p: Problem
) -> tuple[Int[Array, "B L"], Int[Array, "B L"], Int[Array, "B L"], Int[Array, "B R"]]:
    """Ids of queries and of keys, positions, and the starts of all documents with the end of the last."""
    # Both sides are cut from the end of one packed row of length L = max(T, S): bottom-right alignment.
    length = max(p.q_len, p.kv_len)
    count = min(max(length // TOKENS_PER_DOCUMENT, MIN_DOCUMENTS), MAX_DOCUMENTS, length)
    column = jnp.arange(length, dtype=jnp.int32)
    # Of few queries at the end of many keys most must see something.
    used = length - min(p.q_len, p.kv_len) // 16
    starts = jax.random.randint(key, (p.batch, count - 1), 1, max(used, 2), jnp.int32)
    starts = jnp.concatenate([jnp.zeros((p.batch, 1), jnp.int32), jnp.sort(starts, axis=1)], axis=1)

    def ids_of(starts: Int[Array, " documents"]) -> Int[Array, " L"]:
        return jnp.searchsorted(starts, column, side="right", method="scan_unrolled").astype(jnp.int32)

    ids = jax.vmap(ids_of)(starts)
    position = column[None] - jnp.take_along_axis(starts, ids - 1, axis=1)
    padding = column >= used
    offsets = jnp.pad(starts, ((0, 0), (0, 1)), constant_values=used)
    return jnp.where(padding, Q_PADDING, ids), jnp.where(padding, KV_PADDING, ids), position, offsets
