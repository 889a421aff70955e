"""The public ``indexer_topk``: the keys of the highest scores of the indexer, as ``sparse_mla`` takes them."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from attn_tune.api.sparse.indexer import indexer
from attn_tune.ops.fields.arguments import static_float
from attn_tune.ops.fields.integers import positive_integer
from attn_tune.schema.errors import UsageError, shown


def indexer_topk(
    query: Float[Array, "..."],
    key: Float[Array, "..."],
    weights: Float[Array, "..."],
    starts: Int[Array, "..."] | None = None,
    ends: Int[Array, "..."] | None = None,
    *,
    topk: int,
    recall: float = 1.0,
    **options: Any,
) -> Int[Array, "..."]:
    """The indices of the ``topk`` highest scores of each query's range, as ``sparse_mla`` takes them.

    Scores are those of ``indexer``, whose kernel is looked up; the selection is XLA's. Among equal scores any may be
    selected. Ranges of fewer keys fill up with -1.

    Args:
      query, key, weights, starts, ends: as in ``indexer``.
      topk: how many; at most ``S`` of them name a key.
      recall: the expected share of the right ones; below one the selection is approximate (``jax.lax.approx_max_k``),
        which is faster on TPU.
      options: those of ``indexer``; ``scale`` must be above zero, or it would not be the best that are selected.

    Returns:
      int32 ``[B, T, topk]`` or ``[tokens, topk]``, by descending score, -1 last.

    Raises:
      UsageError: an argument is malformed; the message names it.
      UnsupportedError: no kernel can do this here, or not the requested one.
    """
    topk = positive_integer("topk", topk)
    if not 0 < static_float("recall", recall) <= 1:
        raise UsageError(f"recall must be above 0 and at most 1, got {shown(recall)}")
    # Scores are float32: a scale that is zero there makes all keys equal, one below zero selects the worst.
    if "scale" in options and not np.float32(static_float("scale", options["scale"])) > 0:
        raise UsageError(f"scale must be above 0 to select the highest scores, got {shown(options['scale'])}")
    scores = indexer(query, key, weights, starts, ends, **options)
    count = min(topk, scores.shape[-1])
    if recall < 1:
        values, indices = jax.lax.approx_max_k(scores, count, recall_target=recall)
    else:
        values, indices = jax.lax.top_k(scores, count)
    indices = jnp.where(jnp.isneginf(values), -1, indices)
    missing = [(0, 0)] * (indices.ndim - 1) + [(0, topk - count)]
    return jnp.pad(indices, missing, constant_values=-1)
