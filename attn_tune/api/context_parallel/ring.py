"""The two rings of one call: keys and values pass by in the forward, and in the backward with their gradients.

The forward merges the results of the hops by their lse. The backward gives every hop the output and the lse of the
whole call, with which the gradients of the hops add up to those of the whole (Liu et al., arXiv 2310.01889).
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, Int

from attn_tune.api.context_parallel.hops import ALL, Hop, Part, Place, Plan
from attn_tune.api.direction import launched
from attn_tune.api.flash_attention_call import CALL, row_delta, sink_gradient
from attn_tune.api.request import Request
from attn_tune.kernels.lang.libraries.residuals import with_sinks
from attn_tune.ops.flash_attention.normalise import normalise
from attn_tune.ops.flash_attention.operands import BackwardInputs, Operands, Residuals
from attn_tune.ops.flash_attention.options import Options
from attn_tune.ops.flash_attention.problem import Problem
from attn_tune.ops.masks.mask_info import MaskInfo
from attn_tune.runtime.active.layers import in_open_blocks

# The lse of queries whose result does not count: every weight that it leaves is zero, and no kernel makes NaN of it.
_NOTHING = 1e30


class Settings(NamedTuple):
    """All of a call that is known when it is traced, but for its hops.

    Attributes:
      options: those of every product.
      request: the kernels and configs that the caller insists on.
      returns_lse: whether the derivative may be that of the lse too.
    """

    options: Options
    request: Request
    returns_lse: bool


class Local(NamedTuple):
    """The arrays of one device.

    Attributes:
      q, k, v: queries, keys and values.
      q_segments, kv_segments: ids; a query sees keys of its own id.
      sinks: one logit a query head, which joins the softmax once.
    """

    q: Float[Array, "B T N H"]
    k: Float[Array, "B T K H"]
    v: Float[Array, "B T K V"]
    q_segments: Int[Array, "B T"] | None = None
    kv_segments: Int[Array, "B T"] | None = None
    sinks: Float[Array, " N"] | None = None


class _Keys(NamedTuple):
    """The arrays that are passed on. All have batch and tokens in front."""

    k: Array
    v: Array
    segments: Array | None


class _Queries(NamedTuple):
    """The arrays that stay where they are, likewise."""

    q: Array
    segments: Array | None


class _Total(NamedTuple):
    """A merged result in float32: the output ``[B, T, N, V]`` and the lse ``[B, T, N]``."""

    out: Array
    lse: Array


def ring(
    settings: Settings, planned: Callable[[], Plan], local: Local
) -> tuple[Float[Array, "B T N V"], Float[Array, "B N T"]]:
    """``(out, lse)`` of the device's queries over the keys of all devices, differentiable once in reverse mode.

    ``planned`` makes the plan where it is needed: in the program of the forward, and again in that of the backward.
    """

    @jax.custom_vjp
    def function(local: Local) -> tuple[Array, Array]:
        return _forward(settings, planned(), local)

    def forward(local: Local) -> tuple[Any, Any]:
        # The names are those of one call of flash_attention: policies that keep its results keep these.
        kept = tuple(
            checkpoint_name(x, f"{CALL.op}_{name}")
            for x, name in zip(_forward(settings, planned(), local), CALL.residuals, strict=True)
        )
        return kept, (local, kept)

    def backward(saved: Any, cotangents: Any) -> tuple[Local]:
        local, kept = saved
        return (_backward(settings, planned(), local, Residuals(*kept), *cotangents),)

    function.defvjp(in_open_blocks(forward), in_open_blocks(backward))
    return function(local)


def _forward(settings: Settings, plan: Plan, local: Local) -> tuple[Array, Array]:
    queries, own = _sides(plan, local)
    total: _Total | None = None
    for hop, keys in _visits(plan, own):
        out, lse = _attended(settings, hop, queries, keys)
        total = _Total(out.astype(jnp.float32), lse) if total is None else _merged(total, hop, out, lse)
    assert total is not None  # A device meets its own keys first.
    done = with_sinks(plan.join(total.out), plan.join(total.lse).swapaxes(1, 2), local.sinks)
    return done["out"].astype(local.q.dtype), done["lse"]


def _backward(settings: Settings, plan: Plan, local: Local, whole: Residuals, dout: Array, dlse: Array) -> Local:
    delta = row_delta(whole, dout, dlse if settings.returns_lse else None)
    queries, own = _sides(plan, local)
    rows = Residuals(whole.out, whole.lse.swapaxes(1, 2)), dout, delta.swapaxes(1, 2)
    rows = jax.tree.map(plan.split, rows)
    wide: tuple[Array, ...] = tuple(jnp.zeros_like(x, jnp.float32) for x in (queries.q, own.k, own.v))
    dq, dk, dv = wide
    for hop, keys in _visits(plan, own):
        dq_here, *dkv_here = _gradients(settings, hop, queries, keys, *rows)
        dq = _added(dq, hop.place(dq_here))
        # Straight to the owner, in 16 bits where the arrays have them: half the bytes of sums that go round, which
        # would wait for each hop. While the next hop computes, they travel.
        dk, dv = (
            _added(total, [(hop.band.keys, ((plan.move(x, -hop.shift), None),))])
            for total, x in zip((dk, dv), dkv_here, strict=True)
        )
    sinks = local.sinks
    return Local(
        *(plan.join(x).astype(like.dtype) for x, like in zip((dq, dk, dv), (local.q, local.k, local.v), strict=True)),
        sinks=None if sinks is None else sink_gradient(sinks, whole.lse, delta),
    )


def _sides(plan: Plan, local: Local) -> tuple[_Queries, _Keys]:
    queries = _Queries(local.q, local.q_segments)
    return jax.tree.map(plan.split, (queries, _Keys(local.k, local.v, local.kv_segments)))


def _visits(plan: Plan, own: _Keys) -> Iterator[tuple[Hop, _Keys]]:
    """Each hop with the keys that have come to it. The next transfer is issued before the products of a hop."""
    waiting = plan.own, own
    for chain in plan.chains:
        before, came = plan.own, own
        for hop in chain:
            needed, places = _within(before.band.keys, hop.band.keys), hop.shift - before.shift
            came = jax.tree.map(lambda x, needed=needed, places=places: plan.move(x[:, needed], places), came)
            yield waiting
            waiting = hop, came
            before = hop
    yield waiting


def _within(outer: slice, inner: slice) -> slice:
    """The tokens ``inner`` of a chunk, counted from the first of ``outer``."""
    if inner == ALL:
        return ALL
    first = outer.start or 0
    return slice(inner.start - first, inner.stop - first)


def _attended(settings: Settings, hop: Hop, queries: _Queries, keys: _Keys) -> tuple[Array, Array]:
    """The output of one product and its lse ``[batch, tokens, N]``, minus infinity for queries that do not count."""
    problem, operands = _product(settings, hop, queries, keys)
    made = launched(CALL, problem, settings.request, CALL.forward, operands)
    lse = made["lse"].swapaxes(1, 2)
    return made["out"], lse if hop.counts is None else jnp.where(hop.counts[..., None], lse, -jnp.inf)


def _gradients(
    settings: Settings, hop: Hop, queries: _Queries, keys: _Keys, whole: Residuals, dout: Array, delta: Array
) -> tuple[Array, Array, Array]:
    """``(dq, dk, dv)`` of one product, of its queries and of the keys that have come."""
    problem, operands = _product(settings, hop, queries, keys)
    out, lse, dout, delta = map(hop.queries, (*whole, dout, delta))
    if hop.counts is not None:
        counts = hop.counts[..., None]
        lse, delta = jnp.where(counts, lse, _NOTHING), jnp.where(counts, delta, 0)
        dout = jnp.where(counts[..., None], dout, 0)
    inputs = BackwardInputs(operands, Residuals(out, lse.swapaxes(1, 2)), dout, delta.swapaxes(1, 2))
    made = launched(CALL, problem, settings.request, CALL.backward, inputs)

    def to_keys(grad: Array, came: Array) -> Array:
        # Chosen keys may be among the product's keys twice: their gradients are added in float32.
        (total,) = jax.vjp(hop.chosen_keys, came.astype(jnp.float32))[1](grad.astype(jnp.float32))
        return total.astype(grad.dtype)

    return made["q"], to_keys(made["k"], keys.k), to_keys(made["v"], keys.v)


def _product(settings: Settings, hop: Hop, queries: _Queries, keys: _Keys) -> tuple[Problem, Operands]:
    """The problem of one product and its operands."""
    q, q_segments = jax.tree.map(hop.queries, (queries.q, queries.segments))
    k, v, kv_segments = jax.tree.map(hop.chosen_keys, keys)
    left, right = hop.band.window
    mask = MaskInfo(
        q_segment_ids=q_segments,
        kv_segment_ids=kv_segments,
        causal=right == 0,
        sliding_window=(left, None if right == 0 else right),
    )
    problem, operands = normalise(q, k, v, options=settings.options, mask=mask)
    return dataclasses.replace(problem, has_lse_gradient=settings.returns_lse, needs_lse=True), operands


def _added(total: Array, places: list[Place]) -> Array:
    """``total`` with the parts added where they belong."""

    def added(tokens: slice, parts: tuple[Part, ...]) -> Array:
        seen = (x if where is None else jnp.where(where, x, 0) for x, where in parts)
        return sum((x.astype(total.dtype) for x in seen), total[:, tokens])

    return _replaced(total, [(tokens, added(tokens, parts)) for tokens, parts in places])


def _merged(total: _Total, hop: Hop, out: Array, lse: Array) -> _Total:
    """The result with that of one more product, in float32."""
    outs, lses = [], []
    for (tokens, parts), (_, part_lses) in zip(hop.place(out), hop.place(lse), strict=True):
        seen = [x if where is None else jnp.where(where, x, -jnp.inf) for x, where in part_lses]
        all_lses = [total.lse[:, tokens], *seen]
        together = functools.reduce(jnp.logaddexp, all_lses)
        # A query that has seen no key yet has no weights: minus infinity less minus infinity is not a number.
        weights = (jnp.where(jnp.isneginf(together), 0, jnp.exp(x - together))[..., None] for x in all_lses)
        values = (total.out[:, tokens], *(x.astype(jnp.float32) for x, _ in parts))
        outs.append((tokens, sum(w * x for w, x in zip(weights, values, strict=True))))
        lses.append((tokens, together))
    return _Total(_replaced(total.out, outs), _replaced(total.lse, lses))


def _replaced(total: Array, regions: list[tuple[slice, Array]]) -> Array:
    """``total`` with other values at these tokens, which are all of them, in order, where there are several regions.

    Then they are put side by side: XLA makes one pass of it, where it would make one for each update.
    """
    if len(regions) > 1:
        return jnp.concatenate([values for _, values in regions], axis=1)
    ((tokens, values),) = regions
    # A scatter without indices, which a whole slice would make, ends XLA's partitioner of JAX 0.11.2 with a SIGSEGV.
    is_whole = tokens.indices(total.shape[1]) == (0, total.shape[1], 1)
    return values if is_whole else total.at[:, tokens].set(values)
