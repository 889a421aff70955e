"""Attention written plainly, for tests: dense, float32, differentiated by autodiff. Shares no code with the package."""

import jax
import jax.numpy as jnp
import numpy as np


def dense_attention(q, k, v, *, visible=None, bias=None, sinks=None, scale=None, cap=None, keep=None, rate=0.0):
    """``(out, lse, row_max)`` of BTNH inputs; ``visible``, ``bias`` and ``keep`` broadcast to [B, N, T, S]."""
    q, k, v = (x.astype(jnp.float32) for x in (q, k, v))
    groups = q.shape[2] // k.shape[2]
    k, v = jnp.repeat(k, groups, axis=2), jnp.repeat(v, groups, axis=2)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    logits = scale * jnp.einsum("btnh,bsnh->bnts", q, k, precision="highest")
    if cap is not None:
        logits = cap * jnp.tanh(logits / cap)
    if bias is not None:
        logits = logits + bias.astype(jnp.float32)
    seen = jnp.broadcast_to(True if visible is None else visible, logits.shape)
    any_seen = seen.any(-1, keepdims=True)
    # A plain softmax over a row with at least one entry; rows that see nothing are replaced before and after.
    safe = jnp.where(seen, logits, -jnp.inf)
    if sinks is not None:
        extra = jnp.broadcast_to(sinks.astype(jnp.float32)[None, :, None, None], (*logits.shape[:3], 1))
        row_max = jnp.maximum(safe.max(-1, keepdims=True), extra)
        safe = jnp.where(any_seen, safe, jnp.where(jnp.arange(logits.shape[-1]) == 0, -1e30, -jnp.inf))
        joined = jnp.concatenate([safe, extra], axis=-1)
        weights = jax.nn.softmax(joined, axis=-1)[..., :-1]
        lse = jax.nn.logsumexp(joined, axis=-1)
    else:
        row_max = safe.max(-1, keepdims=True)
        safe = jnp.where(any_seen, safe, 0.0)
        weights = jax.nn.softmax(safe, axis=-1)
        lse = jnp.where(any_seen[..., 0], jax.nn.logsumexp(safe, axis=-1), -jnp.inf)
    weights = jnp.where(seen, weights, 0.0)
    if keep is not None:
        weights = jnp.where(keep, weights / (1.0 - rate), 0.0)
    out = jnp.einsum("bnts,bsnv->btnv", weights, v, precision="highest")
    return out, lse, row_max[..., 0]


def bounds(q_len, kv_len, *, causal=False, left=None, right=None):
    """The dense causal and window mask [T, S], aligned at the bottom right, row by row."""
    seen = np.zeros((q_len, kv_len), bool)
    for i in range(q_len):
        position = i + kv_len - q_len
        for j in range(kv_len):
            seen[i, j] = (
                (not causal or j <= position)
                and (left is None or j >= position - left)
                and (right is None or j <= position + right)
            )
    return seen


def keep_mask(seed, rate, batch, heads, q_len, kv_len):
    """The dropout decision [B, N, T, S], from the published integer recipe, in plain Python-width numpy."""
    m32 = np.uint64(0xFFFFFFFF)

    def mix(x):
        x = x & m32
        x = x ^ (x >> np.uint64(16))
        x = (x * np.uint64(0x7FEB352D)) & m32
        x = x ^ (x >> np.uint64(15))
        x = (x * np.uint64(0x846CA68B)) & m32
        return x ^ (x >> np.uint64(16))

    b = np.arange(batch, dtype=np.uint64)[:, None, None, None]
    n = np.arange(heads, dtype=np.uint64)[None, :, None, None]
    i = np.arange(q_len, dtype=np.uint64)[None, None, :, None]
    j = np.arange(kv_len, dtype=np.uint64)[None, None, None, :]
    h = mix(np.uint64((seed + 0x9E3779B9) & 0xFFFFFFFF))
    h = mix(h ^ ((b * np.uint64(0x85EBCA6B)) & m32))
    h = mix(h ^ ((n * np.uint64(0xC2B2AE35)) & m32))
    bit = np.uint64(8)
    x = mix(h + (i & ~bit)) ^ (((j & ~bit) * np.uint64(0x27D4EB2F)) & m32)
    x = ((x ^ (x >> np.uint64(16))) * np.uint64(0x7FEB352D)) & m32
    x = x ^ (x >> np.uint64(15))
    factors = np.where(
        (i & bit) == 0,
        np.where((j & bit) == 0, np.uint64(0x846CA68B), np.uint64(0x4ED27881)),
        np.where((j & bit) == 0, np.uint64(0xEF097A51), np.uint64(0x4F690B93)),
    )
    bits = (x * factors) & m32
    return bits >= np.uint64(round(rate * 2**32))
