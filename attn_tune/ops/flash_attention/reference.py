"""Dense attention in high precision (the reference), and done plainly in the working dtype (the baseline).

Both walk one (batch, query head, block of rows) at a time and hold all keys of that block, so a 128k row fits. The
gradients are those of ``jax.vjp`` through the dense forward, for the cotangent of the lse that the given ``delta``
says. Nothing here is shared with a kernel: masks and dropout bits are spelled a second time on purpose.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from attn_tune.ops.fields.rounding import round_to
from attn_tune.ops.flash_attention.operands import BackwardInputs, Operands
from attn_tune.ops.flash_attention.problem import Problem
from attn_tune.ops.typed_jax import fori_loop, vjp

BLOCK_ELEMENTS = 2**24
FLOAT64_ELEMENTS = 2**22


class Block(NamedTuple):
    """One head's rows against all its keys. ``visible`` and ``keep`` are ``[rows, S]``.

    Attributes:
      q, k, v: queries, keys and values.
      bias: what is added to the logits; None without.
      sink: the logit of the sink; None without.
    """

    q: Float[Array, "rows H"]
    k: Float[Array, "S H"]
    v: Float[Array, "S V"]
    bias: Float[Array, "_t _s"] | None
    visible: Bool[Array, "rows S"]
    keep: Bool[Array, "rows S"] | None
    sink: Float[Array, ""] | None


type BlockFn = Callable[[Problem, Block], tuple[Array, Array]]


def reference(problem: Problem, direction: str, inputs: Operands | BackwardInputs) -> dict[str, Array]:
    """Outputs (``out``, ``lse``) or gradients (``dq``, ``dk``, ``dv`` and ``dbias`` where there is a bias).

    In float32 with ``Precision.HIGHEST``; in float64 where 64-bit types are enabled, the problem is small and the
    default device is a CPU. Logits are never rounded to ``logits_dtype``: that is a loss, and the baseline shows it.
    """
    pairs = problem.batch * problem.num_q_heads * problem.q_len * problem.kv_len
    has_float64 = jax.dtypes.canonicalize_dtype(jnp.float64) == jnp.float64
    wide = has_float64 and pairs <= FLOAT64_ELEMENTS and jax.default_backend() == "cpu"
    dtype = jnp.dtype(jnp.float64 if wide else jnp.float32)
    if isinstance(inputs, Operands):
        return _forward(problem, inputs, _exact, dtype)
    return _backward(problem, inputs, _exact, dtype)


def baseline(problem: Problem, direction: str, inputs: Operands | BackwardInputs) -> dict[str, Array]:
    """The same computed plainly in the working dtype, each output in its contract's dtype.

    Products take the dtype's operands and accumulate in float32; logits are rounded to ``logits_dtype``; softmax
    weights and the gradients of logits are rounded to the dtype before they enter a product.
    """
    dtype = jnp.dtype(problem.dtype)
    if isinstance(inputs, Operands):
        outputs = _forward(problem, inputs, _plain, dtype)
        return {"out": outputs["out"].astype(dtype), "lse": outputs["lse"]}
    grads = _backward(problem, inputs, _plain, dtype)
    o = inputs.operands
    primals = {"dq": o.q, "dk": o.k, "dv": o.v, "dbias": o.bias}
    return {name: grad.astype(x.dtype) for name, grad in grads.items() if (x := primals[name]) is not None}


def _exact(p: Problem, block: Block) -> tuple[Array, Array]:
    logits = p.scale * jnp.matmul(block.q, block.k.T, precision=lax.Precision.HIGHEST)
    weights, lse = _softmax(_cap_and_bias(p, logits, block.bias), block)
    if block.keep is not None:
        weights = jnp.where(block.keep, weights / (1.0 - p.dropout_rate), 0.0)
    return jnp.matmul(weights, block.v, precision=lax.Precision.HIGHEST), lse


def _plain(p: Problem, block: Block) -> tuple[Array, Array]:
    f32 = jnp.float32
    product = functools.partial(jnp.matmul, precision=p.precision, preferred_element_type=f32)
    logits = p.scale * _round_cotangent(product(block.q, block.k.T), block.q.dtype)
    logits = round_to(logits, jnp.dtype(p.logits_dtype))
    bias = None if block.bias is None else block.bias.astype(f32)
    weights, lse = _softmax(_cap_and_bias(p, logits, bias), block)
    if block.keep is not None:
        weights = jnp.where(block.keep, weights / (1.0 - p.dropout_rate), 0.0)
    return product(weights.astype(block.v.dtype), block.v), lse


def _cap_and_bias(p: Problem, logits: Array, bias: Array | None) -> Array:
    if p.soft_cap is not None:
        logits = p.soft_cap * jnp.tanh(logits / p.soft_cap)
    return logits if bias is None else logits + bias


def _softmax(logits: Array, block: Block) -> tuple[Array, Array]:
    # The two `where` keep the gradient of hidden entries an exact zero, and rows without a visible key free of NaN.
    peak = jnp.max(jnp.where(block.visible, logits, -jnp.inf), axis=-1)
    if block.sink is not None:
        peak = jnp.maximum(peak, block.sink)
    peak = lax.stop_gradient(jnp.where(jnp.isfinite(peak), peak, 0.0))
    shifted = jnp.where(block.visible, logits - peak[:, None], 0.0)
    terms = jnp.where(block.visible, jnp.exp(shifted), 0.0)
    total = jnp.sum(terms, axis=-1)
    if block.sink is not None:
        total = total + jnp.exp(block.sink - peak)
    some = total > 0
    total = jnp.where(some, total, 1.0)
    return terms / total[:, None], jnp.where(some, peak + jnp.log(total), -jnp.inf)


def _unrounded(x: Array, dtype: jnp.dtype) -> Array:
    return x


def _round_cotangent_fwd(x: Array, dtype: jnp.dtype) -> tuple[Array, None]:
    return x, None


def _round_cotangent_bwd(dtype: jnp.dtype, _: None, ct: Array) -> tuple[Array]:
    return (round_to(ct, dtype),)


_round_cotangent = jax.custom_vjp(_unrounded, nondiff_argnums=(1,))
_round_cotangent.defvjp(_round_cotangent_fwd, _round_cotangent_bwd)


def _forward(p: Problem, o: Operands, block_fn: BlockFn, dtype: jnp.dtype) -> dict[str, Array]:
    acc = jnp.promote_types(dtype, jnp.float32)
    rows = _rows_per_block(p)

    def step(index: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        b, n, start, _ = _locate(p, index, rows)
        out, lse = block_fn(p, _read(p, o, b, n, start, rows, dtype))
        return (
            _set(carry[0], out[None, :, None], (b, start, n, 0)),
            _set(carry[1], lse[None, None], (b, n, start)),
        )

    init = (
        jnp.zeros((p.batch, p.q_len, p.num_q_heads, p.v_head_dim), acc),
        jnp.zeros((p.batch, p.num_q_heads, p.q_len), acc),
    )
    out, lse = fori_loop(jnp.int32(0), jnp.int32(_num_blocks(p, rows)), step, init)
    return {"out": out, "lse": lse}


def _backward(p: Problem, inputs: BackwardInputs, block_fn: BlockFn, dtype: jnp.dtype) -> dict[str, Array]:
    o = inputs.operands
    acc = jnp.promote_types(dtype, jnp.float32)
    rows = _rows_per_block(p)

    def step(index: Array, carry: dict[str, Array]) -> dict[str, Array]:
        b, n, start, fresh = _locate(p, index, rows)
        block = _read(p, o, b, n, start, rows, dtype)

        def run(q: Array, k: Array, v: Array, bias: Array | None) -> tuple[Array, Array]:
            return block_fn(p, block._replace(q=q, k=k, v=v, bias=bias))

        (out, lse), pull = vjp(run, block.q, block.k, block.v, block.bias)
        dout = lax.dynamic_slice(inputs.dout, _int32((b, start, n, 0)), (1, rows, 1, p.v_head_dim))
        dout = dout.reshape(rows, p.v_head_dim).astype(out.dtype)
        delta = lax.dynamic_slice(inputs.delta, _int32((b, n, start)), (1, 1, rows)).reshape(rows)
        # The last block starts early enough to be whole: rows done before it get no cotangent a second time.
        dout = jnp.where(fresh[:, None], dout, 0.0)
        live = fresh & jnp.isfinite(lse)
        # The given delta is rowsum(dout * out) - dlse of a rounded `out`. That error belongs to the inputs, which every
        # kernel takes as they are, and it may be 30 times the kernel's own in a row that sees few keys.
        dlse = jnp.sum(out * dout, axis=-1) - delta
        ct_lse = jnp.where(live, dlse, 0.0).astype(lse.dtype)
        dq, dk, dv, dbias = pull((dout, ct_lse))
        kv = n // p.group_size
        carry = dict(carry)
        carry["dq"] = _add(carry["dq"], dq[None, :, None], (b, start, n, 0))
        carry["dk"] = _add(carry["dk"], dk[None, :, None], (b, 0, kv, 0))
        carry["dv"] = _add(carry["dv"], dv[None, :, None], (b, 0, kv, 0))
        if p.bias_dims is not None:
            at = _corner(p.bias_dims, b, n, start)
            carry["dbias"] = _add(carry["dbias"], dbias[None, None], at)
        return carry

    init = {"dq": jnp.zeros(o.q.shape, acc), "dk": jnp.zeros(o.k.shape, acc)}
    init["dv"] = jnp.zeros(o.v.shape, acc)
    if o.bias is not None:
        init["dbias"] = jnp.zeros(o.bias.shape, acc)
    return fori_loop(jnp.int32(0), jnp.int32(_num_blocks(p, rows)), step, init)


def _rows_per_block(p: Problem) -> int:
    return max(1, min(p.q_len, BLOCK_ELEMENTS // p.kv_len))


def _num_blocks(p: Problem, rows: int) -> int:
    return p.batch * p.num_q_heads * -(-p.q_len // rows)


def _locate(p: Problem, index: Array, rows: int) -> tuple[Array, Array, Array, Array]:
    per_head = -(-p.q_len // rows)
    head, block = index // per_head, index % per_head
    start = jnp.minimum(block * rows, p.q_len - rows)
    fresh = start + jnp.arange(rows) >= block * rows
    return head // p.num_q_heads, head % p.num_q_heads, start, fresh


def _read(p: Problem, o: Operands, b: Array, n: Array, start: Array, rows: int, dtype: jnp.dtype) -> Block:
    def cut(x: Array, at: tuple[Array | int, ...], size: tuple[int, ...]) -> Array:
        return lax.dynamic_slice(x, _int32(at), size)

    def dense(x: Array, dims: str) -> Array:
        size = (1, 1, rows if dims[2] == "t" else 1, p.kv_len if dims[3] == "s" else 1)
        return cut(x, _corner(dims, b, n, start), size).reshape(size[2:])

    kv = n // p.group_size
    row = start + jnp.arange(rows, dtype=jnp.int32)
    col = jnp.arange(p.kv_len, dtype=jnp.int32)
    visible = jnp.ones((rows, p.kv_len), bool)
    q_pos, kv_pos = row + (p.kv_len - p.q_len), col
    if o.q_positions is not None and o.kv_positions is not None:
        q_pos = cut(o.q_positions, (b, start), (1, rows)).reshape(rows)
        kv_pos = cut(o.kv_positions, (b, 0), (1, p.kv_len)).reshape(p.kv_len)
    ahead = kv_pos[None, :] - q_pos[:, None]
    if p.causal:
        visible &= ahead <= 0
    if p.window[0] is not None:
        visible &= ahead >= -p.window[0]
    if p.window[1] is not None:
        visible &= ahead <= p.window[1]
    if o.q_segments is not None and o.kv_segments is not None:
        q_seg = cut(o.q_segments, (b, start), (1, rows)).reshape(rows, 1)
        visible &= q_seg == cut(o.kv_segments, (b, 0), (1, p.kv_len)).reshape(1, p.kv_len)
    if o.mask is not None and p.mask_dims is not None:
        visible &= dense(o.mask, p.mask_dims)
    bias = None
    if o.bias is not None and p.bias_dims is not None:
        bias = dense(o.bias, p.bias_dims).astype(jnp.promote_types(dtype, o.bias.dtype))
    k = cut(o.k, (b, 0, kv, 0), (1, p.kv_len, 1, p.head_dim)).reshape(p.kv_len, -1).astype(dtype)
    v = cut(o.v, (b, 0, kv, 0), (1, p.kv_len, 1, p.v_head_dim)).reshape(p.kv_len, -1).astype(dtype)
    if o.kv_lengths is not None:
        # What is there may be infinite or not a number.
        counted = (col < o.kv_lengths[b])[:, None]
        k, v = jnp.where(counted, k, 0), jnp.where(counted, v, 0)
    return Block(
        q=cut(o.q, (b, start, n, 0), (1, rows, 1, p.head_dim)).reshape(rows, p.head_dim).astype(dtype),
        k=k,
        v=v,
        bias=bias,
        visible=visible,
        keep=None if o.dropout is None else _kept(o.dropout, p.dropout_rate, b, n, row, col),
        sink=None if o.sinks is None else o.sinks[n].astype(jnp.promote_types(dtype, jnp.float32)),
    )


def _kept(words: Array, rate: float, b: Array, n: Array, row: Array, col: Array) -> Array:
    # A second spelling of the dropout bits: the three rounds as a table, the indices folded in one after the other.
    def scramble(h: Array) -> Array:
        for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B), (16, 1)):
            h = (h ^ lax.shift_right_logical(h, jnp.uint32(shift))) * jnp.uint32(factor)
        return h

    words = words.astype(jnp.uint32)
    to_u32 = functools.partial(lax.convert_element_type, new_dtype=jnp.uint32)
    batch = (to_u32(b) + words[1]) * jnp.uint32(2246822507)
    head = (to_u32(n) + words[2]) * jnp.uint32(3266489909)
    h = scramble(scramble(scramble(words[0] + jnp.uint32(2654435769)) ^ batch) ^ head)
    # Four weights have one hash, and each its own last factor: by bit 3 of the row and of the column.
    odd_row, odd_col = (lax.shift_right_logical(to_u32(x), jnp.uint32(3)) & 1 for x in (row, col))
    h = scramble(h + to_u32(row) - 8 * odd_row)[:, None]
    h = h ^ ((to_u32(col) - 8 * odd_col) * jnp.uint32(668265263))[None, :]
    for shift, factor in ((16, 2146121005), (15, 1)):
        h = (h ^ lax.shift_right_logical(h, jnp.uint32(shift))) * jnp.uint32(factor)
    # [even or odd column, even or odd row]
    factors = jnp.array([[2221713035, 4010375761], [1322416257, 1332284307]], jnp.uint32)
    even, odd = factors[:, odd_row, None]
    h = h * jnp.where(odd_col == 1, odd, even)
    return h >= jnp.uint32(min(int(rate * 4294967296.0 + 0.5), 0xFFFFFFFF))


def _corner(dims: str, b: Array, n: Array, start: Array) -> tuple[Array | int, ...]:
    return tuple(i if d != "1" else 0 for d, i in zip(dims, (b, n, start, 0), strict=True))


def _set(x: Array, update: Array, at: tuple[Array | int, ...]) -> Array:
    return lax.dynamic_update_slice(x, update.astype(x.dtype), _int32(at))


def _add(x: Array, update: Array, at: tuple[Array | int, ...]) -> Array:
    return _set(x, lax.dynamic_slice(x, _int32(at), update.shape) + update.astype(x.dtype), at)


def _int32(at: tuple[Array | int, ...]) -> tuple[Array, ...]:
    # Start indices must share one type, and a Python integer is an int64 where 64-bit types are enabled.
    return tuple(jnp.asarray(i, jnp.int32) for i in at)
