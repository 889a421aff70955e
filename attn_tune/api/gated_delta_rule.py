"""The public ``gated_delta_rule``: linear attention with a gated state and the delta rule."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, overload

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float, Int

from attn_tune.api.call import run
from attn_tune.api.declaration import Call
from attn_tune.api.other_names import hinting
from attn_tune.ops.fields.arguments import DTYPES, check_array, static_float
from attn_tune.ops.fields.cache_arguments import check_integers
from attn_tune.ops.gated_delta_rule.problem import NAME, Problem
from attn_tune.ops.recurrent.operands import BackwardInputs, Operands
from attn_tune.ops.recurrent.problem import LOWEST_GATE, WORKLOADS
from attn_tune.schema.errors import UsageError, shown, unknown_name

type Specs = Sequence[PartitionSpec | None]


def _outputs(problem: Problem, operands: Operands) -> dict[str, jax.ShapeDtypeStruct]:
    found = {"out": jax.ShapeDtypeStruct(operands.v.shape, operands.v.dtype)}
    if problem.has_final_state:
        here = _with_shapes(problem, operands)
        shape = (here.batch, here.num_value_heads, here.head_dim, here.v_head_dim)
        found["state"] = jax.ShapeDtypeStruct(shape, jnp.float32)
    return found


def _with_shapes(problem: Problem, operands: Operands) -> Problem:
    rows, length, key_heads, _ = operands.q.shape
    ends = operands.cu_seqlens
    return dataclasses.replace(
        problem,
        batch=rows if ends is None else ends.shape[0] - 1,
        length=length,
        num_key_heads=key_heads,
        num_value_heads=operands.v.shape[2],
    )


def _backward_inputs(operands: Operands, residuals: dict, cotangents: dict[str, Array]) -> BackwardInputs:
    return BackwardInputs(operands, cotangents["out"], cotangents.get("state"))


def _call(ragged: bool) -> Call:
    """The call of whole sequences, or of sequences end to end, whose number is a letter of its own and never cut."""
    numbers, state = "btn", "snhv" if ragged else "bnhv"
    whole = "shard heads instead" if ragged else "shard batch and heads instead"
    return Call(
        op=NAME,
        letters={
            **dict.fromkeys(("q", "k"), "btkh"),
            **dict.fromkeys(("v", "out", "dout"), "btnv"),
            **dict.fromkeys(("g", "beta"), numbers),
            **dict.fromkeys(("initial_state", "state", "dstate"), state),
            "cu_seqlens": "e",
        },
        main={"q": "q", "k": "k", "v": "v"},
        outputs=_outputs,
        with_shapes=_with_shapes,
        parallel=("n",) if ragged else ("b", "n"),
        groups={"n": "k"},
        words={"b": "batch", "t": "length", "n": "value heads", "k": "query/key heads", "h": "head dim"}
        | {"v": "value head dim", "s": "sequences", "e": "cu_seqlens"},
        remedies={"t": f"a state goes from token to token, so {whole}", "h": whole, "v": whole, "s": whole, "b": whole},
        gradients=("q", "k", "v", "g", "beta", "initial_state"),
        backward_inputs=_backward_inputs,
        alternative="a jax.lax.scan over the tokens is differentiated in any mode, any number of times",
    )


_CALLS = {ragged: _call(ragged) for ragged in (False, True)}


# The result type depends on ``return_state``. The other forms leave their arguments to the first.
@overload
def gated_delta_rule(
    q: Float[Array, "B T K H"],
    k: Float[Array, "B T K H"],
    v: Float[Array, "B T N V"],
    g: Float[Array, "B T N"] | None = None,
    beta: Float[Array, "B T N"] | None = None,
    *,
    scale: float | None = None,
    initial_state: Float[Array, "sequences N H V"] | None = None,
    cu_seqlens: Int[Array, " ends"] | None = None,
    return_state: Literal[False] = False,
    workload: str = "eq",
    platform: str | Mapping[str, str | None] | None = None,
    cfg: Any = None,
    mesh: Mesh | None = None,
    in_specs: Specs | None = None,
    out_specs: PartitionSpec | None = None,
) -> Float[Array, "B T N V"]: ...


@overload
def gated_delta_rule(
    *arrays: Any, return_state: Literal[True], **arguments: Any
) -> tuple[Float[Array, "B T N V"], Float[Array, "sequences N H V"]]: ...


@overload
def gated_delta_rule(*arrays: Any, return_state: bool, **arguments: Any) -> Any: ...


@hinting("chunk_gated_delta_rule of flash-linear-attention", {"output_final_state": "return_state"})
def gated_delta_rule(
    q: Float[Array, "B T K H"],
    k: Float[Array, "B T K H"],
    v: Float[Array, "B T N V"],
    g: Float[Array, "B T N"] | None = None,
    beta: Float[Array, "B T N"] | None = None,
    *,
    scale: float | None = None,
    initial_state: Float[Array, "sequences N H V"] | None = None,
    cu_seqlens: Int[Array, " ends"] | None = None,
    return_state: bool = False,
    workload: str = "eq",
    platform: str | Mapping[str, str | None] | None = None,
    cfg: Any = None,
    mesh: Mesh | None = None,
    in_specs: Specs | None = None,
    out_specs: PartitionSpec | None = None,
) -> Float[Array, "B T N V"] | tuple[Float[Array, "B T N V"], Float[Array, "sequences N H V"]]:
    """Linear attention whose state forgets by a gate and is corrected by the delta rule (arXiv 2412.06464).

    Example::

        q = k = jnp.zeros((2, 1024, 16, 128), jnp.bfloat16)  # [batch, length, query/key heads, head dim]
        v = jnp.zeros((2, 1024, 32, 128), jnp.bfloat16)  # 2 value heads share a query/key head
        g = beta = jnp.zeros((2, 1024, 32))
        out, state = attn_tune.gated_delta_rule(q, k, v, g, beta, return_state=True)

    Each sequence and value head has a state ``S`` of ``H`` rows and ``V`` columns. A token changes it and reads it::

        S = exp(g) S
        S = S + k (beta (v - S^T k))^T
        out = scale S^T q

    States are float32. The recurrence is stable for keys of length one and strengths from 0 to 2: normalise the keys
    before. Differentiable in every operand, with the returned state taking part: once, in reverse mode. Forward and
    backward are chosen apart, at trace time, from the active packs. A call of ``2 T`` tokens equals one of ``T``, whose
    state is the initial state of another one of ``T``. Few tokens, such as one, are a step of decoding.

    Args:
      q, k: queries and keys. Value head ``n`` reads those of head ``n // (N // K)``.
      v: values, in the dtype of ``q``: bfloat16, float16 or float32.
      g: natural logarithms of the gates, float32 or in the dtype of ``q``, at most 0. At -128 and below, minus infinity
        included, a finite state is forgotten whole. None: no gates, the plain delta rule.
      beta: strengths of the update, float32 or in the dtype of ``q``. None: all are one.
      scale: multiplies the output; default ``1/sqrt(H)``.
      initial_state: float32, the state before the first token of each sequence; None is zeros.
      cu_seqlens: int32 ``[sequences + 1]``: sequences lie end to end in a batch of one; the first token of each, and
        the end of the last. It must never fall, which is not checked: its values are read on the device. Sequences
        may have no token. Tokens of no sequence, which may hold anything, give zeros.
      return_state: return ``(out, state)``.
      workload: with ``cu_seqlens``, the profile of lengths to expect, which chooses the config: ``eq``, ``uni``,
        ``exp``, ``one``, or ``mix`` of sequences that decode one token and chunks.
      platform: the kernel to use, as in ``flash_attention``.
      cfg: configs to use, as in ``flash_attention``.
      mesh: run under ``shard_map`` over batch and heads (with ``cu_seqlens`` heads alone); needs ``in_specs``.
      in_specs: the specs of ``q``, ``k`` and ``v``; those of everything else follow from them.
      out_specs: the spec of the output.

    Returns:
      The output like ``v``. With ``return_state`` also the state after the last token of each sequence, float32
      ``[sequences, N, H, V]``.

    Raises:
      UsageError: an argument is malformed; the message names it.
      UnsupportedError: no kernel can do this here, or not the requested one; or a second derivative was asked for.
    """
    q, k, v = _checked(q, k, v)
    # Callers may pass anything.
    if type(return_state) is not bool:  # pyright: ignore[reportUnnecessaryComparison]
        raise UsageError(f"return_state must be True or False, got {shown(return_state)}")
    factor = q.shape[3] ** -0.5 if scale is None else static_float("scale", scale)
    if not math.isfinite(factor):
        raise UsageError(f"scale must be finite, got {factor}")
    rows, length, num_key_heads, head_dim = q.shape
    num_value_heads, v_head_dim = v.shape[2:]
    ends = None if cu_seqlens is None else _checked_ends(cu_seqlens, rows, length)
    batch = rows if ends is None else ends.shape[0] - 1
    if workload not in (known := [w.name for w in WORKLOADS]):
        raise unknown_name("workload", workload, known)
    if workload != "eq" and ends is None:
        raise UsageError(f"workload={workload!r} is a profile of lengths; it needs cu_seqlens")
    g, beta = (_checked_numbers(name, x, q, v) for name, x in (("g", g), ("beta", beta)))
    states = (batch, num_value_heads, head_dim, v_head_dim)
    if initial_state is not None:
        initial_state = check_array("initial_state", initial_state)
        if initial_state.shape != states or initial_state.dtype != jnp.float32:
            raise UsageError(
                f"initial_state must be float32{list(states)}, got {initial_state.dtype}{list(initial_state.shape)}"
            )
    if 0 in (rows, length, batch):
        out = jnp.zeros_like(v)
        state = jnp.zeros(states, jnp.float32) if initial_state is None else initial_state
        return (out, state) if return_state else out
    problem = Problem(
        batch=batch,
        length=length,
        num_value_heads=num_value_heads,
        num_key_heads=num_key_heads,
        head_dim=head_dim,
        v_head_dim=v_head_dim,
        dtype=q.dtype.name,
        gate="none" if g is None else "head",
        has_beta=beta is not None,
        has_initial_state=initial_state is not None,
        has_final_state=return_state,
        ragged=ends is not None,
        workload=workload,
        scale=factor,
    )
    outputs = run(
        _CALLS[problem.ragged],
        problem,
        Operands(
            q=q,
            k=k,
            v=v,
            # Differences of infinite gates are not numbers; this one is as good as minus infinity.
            g=None if g is None else jnp.maximum(g, LOWEST_GATE),
            beta=beta,
            initial_state=initial_state,
            cu_seqlens=ends,
        ),
        platform=platform,
        cfg=cfg,
        mesh=mesh,
        in_specs=in_specs,
        out_specs=out_specs,
    )
    return (outputs["out"], outputs["state"]) if return_state else outputs["out"]


def _checked(q: Any, k: Any, v: Any) -> tuple[Array, Array, Array]:
    """Queries, keys and values that fit one another."""
    q, k, v = (check_array(name, x) for name, x in (("q", q), ("k", k), ("v", v)))
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.ndim != 4 or 0 in x.shape[2:]:
            raise UsageError(
                f"{name} must be [batch, length, heads, head dim], none of the last two zero, got shape {x.shape}"
            )
        if x.dtype.name not in DTYPES:
            raise UsageError(f"{name} must have dtype {', '.join(DTYPES)}, got {x.dtype}")
    if not q.dtype == k.dtype == v.dtype:
        raise UsageError(f"q, k and v must share a dtype, got {q.dtype}, {k.dtype}, {v.dtype}")
    if q.shape != k.shape:
        raise UsageError(f"q and k must have one shape, got {q.shape} and {k.shape}")
    if q.shape[:2] != v.shape[:2]:
        raise UsageError(f"q and v must agree in batch and length, got {q.shape} and {v.shape}")
    if v.shape[2] % q.shape[2]:
        raise UsageError(
            f"value heads ({v.shape[2]}) must be a multiple of query/key heads ({q.shape[2]}), "
            f"got v of shape {v.shape} and q of shape {q.shape}"
        )
    return q, k, v


def _checked_numbers(name: str, given: Any, q: Array, v: Array) -> Float[Array, "B T N"] | None:
    """Gates or strengths, in float32."""
    if given is None:
        return None
    x = check_array(name, given)
    if x.shape != v.shape[:3] or x.dtype not in (jnp.float32, q.dtype):
        allowed = dict.fromkeys(("float32", q.dtype.name))
        raise UsageError(
            f"{name} must be {' or '.join(allowed)}{list(v.shape[:3])}, one number for each token and value head, "
            f"got {x.dtype}{list(x.shape)}"
        )
    return x.astype(jnp.float32)


def _checked_ends(cu_seqlens: Any, rows: int, length: int) -> Int[Array, " ends"]:
    """The borders of sequences, none beyond the tokens."""
    if rows != 1:
        raise UsageError(f"cu_seqlens lays sequences end to end in a batch of 1, got a batch of {rows}")
    ends = check_array("cu_seqlens", cu_seqlens)
    if ends.ndim != 1 or ends.shape[0] < 2 or not jnp.issubdtype(ends.dtype, jnp.integer):
        raise UsageError(f"cu_seqlens must be int32 [sequences + 1], got {ends.dtype}{list(ends.shape)}")
    return jnp.clip(check_integers("cu_seqlens", ends, ends.shape), 0, length)
