"""The arrays of one row, in every form that an implementation may want them, and the right answers."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from attn_tune.ops.flash_attention.problem import Problem

# Arrays that are differentiated; the gradient of x is called dx.
DIFFERENTIABLE = ("q", "k", "v", "bias", "sinks")
# A dense mask with more entries is not made: implementations that know nothing else cannot do the row.
_MOST_DENSE = 2**30
_TOKENS_PER_DOCUMENT = 1024


@dataclass(frozen=True, kw_only=True)
class Case:
    """One problem with its data.

    Attributes:
      arrays: ``q``, ``k``, ``v``, and where the problem asks for them ``bias``, ``sinks``, ``dropout_seed`` (a uint32).
        What may attend to what is given in several forms at once: ``q_segments`` and ``kv_segments``; ``kv_lengths``
        [B], if that is all; ``offsets``, if the problem says them; ``dense`` [B | 1, 1, T, S], all
        of it but a causal mask that is the same at both corners, unless it were too large.
      dout: the cotangent of the output, [B, T, N, V].
      operands: the same as the op takes them.
      pairs: visible (query, key) pairs of all batch entries, of one head.
    """

    problem: Problem
    arrays: Mapping[str, Any]
    dout: Any
    operands: Any
    pairs: int

    @property
    def flops(self) -> int:
        """Of the forward: two products, visible pairs only."""
        return 2 * self.pairs * self.problem.num_q_heads * (self.problem.head_dim + self.problem.v_head_dim)


def make_case(problem: Problem, seed: int = 0) -> Case:
    """Random arrays. Every query sees a key, since implementations differ in what they return for one that does not.

    Segments are padding of the keys where the problem says their lengths, sequences end to end where it says their
    offsets, and packed documents otherwise; no query is padding.
    """
    import jax
    import jax.numpy as jnp

    from attn_tune.ops.flash_attention.inputs import make_inputs

    p = problem
    plain = replace(p, has_segments=False, has_lengths=False, has_offsets=False)
    operands, dout = jax.jit(lambda: _random(plain, make_inputs, seed))()
    arrays: dict[str, Any] = {"q": operands.q, "k": operands.k, "v": operands.v}
    arrays |= {n: x for n in ("bias", "sinks") if (x := getattr(operands, n)) is not None}
    if operands.dropout is not None:
        # The op's words: seed, and first batch entry and head, which are zero for a call that is no shard.
        operands = operands._replace(dropout=operands.dropout.at[1:].set(0))
        arrays["dropout_seed"] = operands.dropout[0]
    pairs, structure = p.batch * p.visible_pairs, {}
    if p.has_segments:
        structure, pairs = _segments(p, seed)
        arrays |= {name: jnp.asarray(x) for name, x in structure.items()}
        operands = operands._replace(
            q_segments=arrays["q_segments"],
            kv_segments=arrays["kv_segments"],
            kv_lengths=arrays["kv_lengths"] if p.has_lengths else None,
            **({f"{side}_offsets": arrays["offsets"] for side in ("q", "kv")} if p.has_offsets else {}),
        )
    dense = _dense(p, arrays)
    if dense is not None:
        arrays["dense"] = dense
    return Case(problem=p, arrays=arrays, dout=dout, operands=operands, pairs=pairs)


def make_answers(case: Case, *, gradients: bool) -> Any:
    """A compiled function without arguments: ``(exact, plain)``, each ``out`` and the gradients by name."""
    import jax

    from attn_tune.ops.flash_attention.inputs import backward_inputs
    from attn_tune.ops.flash_attention.reference import baseline, reference

    p = case.problem

    def answers(operands, dout):
        exact, plain = reference(p, "fwd", operands), baseline(p, "fwd", operands)
        if not gradients:
            return {"out": exact["out"]}, {"out": plain["out"]}
        inputs = backward_inputs(operands, exact, dout)
        # Of a whole call nothing is given: the output's rounding is an error of its gradients too.
        delta = (exact["out"] * dout).sum(axis=-1).swapaxes(1, 2)
        true = reference(p, "bwd", inputs._replace(delta=delta))
        found = (true, baseline(p, "bwd", inputs))
        return {"out": exact["out"]} | found[0], {"out": plain["out"]} | found[1]

    # It runs once: any algorithm of its products will do.
    options = {"xla_gpu_autotune_level": "0"} if jax.default_backend() == "gpu" else None
    compiled = jax.jit(answers).lower(case.operands, case.dout).compile(compiler_options=options)
    return lambda: compiled(case.operands, case.dout)


def _random(problem: Problem, make_inputs: Any, seed: int) -> tuple[Any, Any]:
    import jax

    operands = make_inputs(problem, "fwd", seed)
    shape = (*operands.q.shape[:3], problem.v_head_dim)
    return operands, jax.random.normal(jax.random.key(seed + 1), shape, operands.q.dtype)


def _segments(p: Problem, seed: int) -> tuple[dict[str, Any], int]:
    """The arrays that say it, and the visible pairs."""
    import numpy as np

    if p.q_len != p.kv_len:
        raise ValueError(f"segments are made for equal lengths, not {p.q_len} queries and {p.kv_len} keys")
    length, draw = p.kv_len, np.random.default_rng(seed)
    if p.has_lengths:
        # From a half to all of the keys, all of them in the first row.
        kept = draw.integers(length // 2, length + 1, p.batch, dtype=np.int32)
        kept[0] = length
        kv_ids = np.where(np.arange(length) < kept[:, None], 0, -2).astype(np.int32)
        arrays = {
            "q_segments": np.zeros((p.batch, length), np.int32),
            "kv_segments": kv_ids,
            "kv_lengths": kept,
        }
        return arrays, length * int(kept.sum())
    count = max(3, length // _TOKENS_PER_DOCUMENT)
    ids, pairs, offsets = [], 0, np.zeros(0, np.int32)
    for _ in range(p.batch):
        cuts = np.sort(draw.choice(np.arange(1, length), count - 1, replace=False))
        offsets = np.array([0, *cuts, length], np.int32)
        sizes = np.diff(offsets).astype(np.int64)
        ids.append(np.repeat(np.arange(count, dtype=np.int32), sizes))
        pairs += int((sizes * (sizes + 1) // 2 if p.causal else sizes * sizes).sum())
    arrays: dict[str, Any] = dict.fromkeys(("q_segments", "kv_segments"), np.stack(ids))
    if p.has_offsets:
        arrays["offsets"] = offsets
    return arrays, pairs


def _dense(p: Problem, arrays: Mapping[str, Any]) -> Any:
    """Mask of segments or a shifted alignment; None where a causal mask and lengths suffice, or if too large."""
    import jax.numpy as jnp

    batch = p.batch if p.has_segments else 1
    shifted = p.q_len != p.kv_len and p.bounds != (None, None)
    if not (p.has_segments or shifted) or batch * p.q_len * p.kv_len > _MOST_DENSE:
        return None
    if p.has_segments:
        return (arrays["q_segments"][:, :, None] == arrays["kv_segments"][:, None, :])[:, None]
    position = jnp.arange(p.q_len)[:, None] + p.offset
    ahead = jnp.arange(p.kv_len)[None] - position
    left, right = p.bounds
    seen = jnp.ones((p.q_len, p.kv_len), bool)
    if right is not None:
        seen &= ahead <= right
    if left is not None:
        seen &= ahead >= -left
    return seen[None, None]
