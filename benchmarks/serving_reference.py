"""Answers of attention over a cache in pages, for some rows: in float32 by torch, and in the working dtype."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from serving_cases import Case

# The place of a row among all queries, its sequence, and its place among the queries of that.
type Row = tuple[int, int, int]


def checked_rows(new: np.ndarray, sequences: int, queries: int) -> list[Row]:
    """Some queries of some sequences, the first and the last of each among them.

    Sequences are the first and the last that have queries and those between them, evenly; of chunks some are taken too.
    """
    having = np.flatnonzero(new)
    starts = np.cumsum(new) - new
    chosen = {int(having[i]) for i in np.linspace(0, len(having) - 1, sequences).astype(int)}
    chosen.add(int(np.argmax(new)))
    return [
        (int(starts[sequence]) + place, sequence, place)
        for sequence in sorted(chosen)
        for place in sorted({int(i) for i in np.linspace(0, new[sequence] - 1, queries)})
    ]


def answers(case: Case, q: Any, k: Any, v: Any, rows: Sequence[Row], dtype: Any) -> Any:
    """The outputs ``[rows, N, V]`` of some queries, in ``dtype``, to which weights are rounded; sums are float32."""
    import torch

    p = case.problem
    group = p.num_q_heads // p.num_kv_heads
    out = []
    for row, sequence, place in rows:
        length, new = int(case.lengths[sequence]), int(case.new[sequence])
        seen = length - new + place + 1 if getattr(p, "causal", True) else length
        pages = torch.from_numpy(case.table[sequence, : -(-seen // p.page_size)].astype("int64")).to(k.device)
        keys, values = (x[pages].reshape(-1, p.num_kv_heads, x.shape[-1])[:seen].float() for x in (k, v))
        query = q[row].float().reshape(p.num_kv_heads, group, p.head_dim)
        weights = torch.softmax(torch.einsum("kgh,skh->kgs", query, keys) * p.scale, dim=-1).to(dtype).float()
        out.append(torch.einsum("kgs,skh->kgh", weights, values).reshape(p.num_q_heads, p.v_head_dim).to(dtype))
    return torch.stack(out)


def error_ratio(case: Case, out: Any, exact: Any, plain: Any) -> float:
    """The error of rows as a multiple of what the project's rule allows (``attn_tune.ops.tolerance``)."""
    from attn_tune.ops.registry import get_op
    from attn_tune.ops.tolerance import compare

    op = get_op(case.problem.NAME)
    arrays = [{"out": _to_jax(x)} for x in (out, exact, plain)]
    (judged,) = compare(*arrays, op.outputs(case.problem, "fwd"))
    return round(judged.ratio, 3)


def _to_jax(x: Any) -> Any:
    import jax.numpy as jnp
    import torch

    if x.dtype == torch.bfloat16:
        return jnp.asarray(x.cpu().view(torch.int16).numpy().view(jnp.bfloat16))
    return jnp.asarray(x.cpu().numpy())
