"""Small problems that are hard to get right."""

import dataclasses
from collections.abc import Iterator
from typing import Any

from attn_tune.ops.fields.unusual_values import OTHER_SCALE
from attn_tune.ops.recurrent.inputs import CONSTANT_GATES, KINDS
from attn_tune.ops.recurrent.problem import RecurrentProblem

# Value heads of every kind of ``Problem.at_edges``.
MAX_KEY_HEADS, MAX_GROUP = 2, 4
# More than one chunk of any kernel and no multiple; less than any chunk.
LONG, SHORT = 333, 7
# Every length of ``Problem.at_edges`` once, and a rest.
SEQUENCES = 8
# Sequences with a pool, of which three at the edges have no slot of it.
POOL_SEQUENCES = 4
# Channels that matrix units want.
_CHANNELS = (64, 128)
BOTH = {"has_initial_state": True, "has_final_state": True}
RAGGED: dict[str, Any] = {"ragged": True, "batch": SEQUENCES, "length": 150}


def features[P: RecurrentProblem](problem: P) -> tuple[P, ...]:
    """Variants of a problem on which a config of it must also be right.

    Flags, dtype, head dims and groups are the problem's own; heads are a few. There are many tokens, a few and one, no
    multiple of any chunk. What no signature says is other than usual in some: the scale, and inputs at the edges. These
    have gates that are zero, tiny, strong and full resets, strengths up to two, keys that repeat, and queries and keys
    of several lengths. Sequences of one token have different gates. A ragged call has sequences that are empty, the
    first and the last one among them, have one token or are cut by every chunk, tokens before and behind them that
    belong to none, more than a chunk of these, and in one problem a token for each sequence. Of sequences with a pool
    some have no slot. One problem has twice the heads, as with a single key head all others could be taken for it.
    """
    p = problem
    group = min(p.group_size, MAX_GROUP)
    # With fewer heads some kinds of gates would not be tried.
    kinds = len(CONSTANT_GATES) if p.gate == "constant" else KINDS
    heads = max(min(p.num_key_heads, MAX_KEY_HEADS), -(-kinds // group))
    small = dataclasses.replace(p, num_key_heads=heads, num_value_heads=heads * group, workload="eq", at_edges=False)
    most = SEQUENCES if p.ragged else POOL_SEQUENCES if p.has_pool else 2
    edges = dataclasses.replace(small, at_edges=True)
    # A call may come with any scale; its row answers all the same.
    unusual = dataclasses.replace(small, scale=OTHER_SCALE * p.scale)
    wide = dataclasses.replace(unusual, num_key_heads=2 * heads, num_value_heads=2 * heads * group)
    # Kernels of one token alone run only the last two of these.
    one_each = (small, most, most) if p.ragged else (edges, max(most, 3), 1)
    sizes = ((edges, most, LONG), (wide, most, LONG), (edges, most, SHORT), one_each, (unusual, 1, 1))
    return tuple(dataclasses.replace(one, batch=batch, length=length) for one, batch, length in sizes)


def coarser[P: RecurrentProblem](problem: P) -> Iterator[P]:
    """Variants of a small problem with wider heads: of multiples of 64 channels, and then of 128."""
    for multiple in _CHANNELS:
        keys, values = (-(-dim // multiple) * multiple for dim in (problem.head_dim, problem.v_head_dim))
        if (keys, values) != (problem.head_dim, problem.v_head_dim):
            yield dataclasses.replace(problem, head_dim=keys, v_head_dim=values)


def samples_of[P: RecurrentProblem](problem: type[P], **own: dict[str, Any]) -> dict[str, P]:
    """Tiny problems by name: each feature that all ops share alone, then combinations, and the op's ``own``."""
    flags: dict[str, dict[str, Any]] = {
        "plain": {},
        "at_edges": {"at_edges": True},
        "float32": {"dtype": "float32"},
        "float32_at_edges": {"dtype": "float32", "at_edges": True, **BOTH},
        "float16": {"dtype": "float16", "at_edges": True},
        "state_in": {"has_initial_state": True},
        "state_out": {"has_final_state": True},
        "states": {"at_edges": True, **BOTH},
        "equal_heads": {"num_value_heads": 3, "num_key_heads": 3, "at_edges": True},
        "one_key_head": {"num_value_heads": 5, "num_key_heads": 1, "at_edges": True},
        "wider_values": {"head_dim": 16, "v_head_dim": 64, **BOTH},
        "narrower_values": {"head_dim": 64, "v_head_dim": 16, **BOTH},
        "odd_dims": {"head_dim": 20, "v_head_dim": 36, "at_edges": True, **BOTH},
        "one_token": {"length": 1, "batch": 5, **BOTH},
        "one_token_at_edges": {"length": 1, "batch": 5, "at_edges": True, **BOTH},
        "four_tokens": {"length": 4, "batch": 3, "at_edges": True, **BOTH},
        "many_tokens": {"length": 300, "batch": 1, "at_edges": True, **BOTH},
        "scale": {"scale": 1.0},
        "pool": {"has_pool": True, "at_edges": True, **BOTH},
        "pool_one_token": {"has_pool": True, "length": 1, "batch": 5, **BOTH},
        "pool_ragged": {"has_pool": True, "at_edges": True, **RAGGED, **BOTH},
        "ragged": RAGGED,
        "ragged_at_edges": {"at_edges": True, **RAGGED},
        "ragged_states": {"at_edges": True, **RAGGED, **BOTH},
        "ragged_tokens": {"ragged": True, "batch": 9, "length": 9, **BOTH},
        "ragged_mixed": {"ragged": True, "batch": 9, "length": 70, "workload": "mix", **BOTH},
        "ragged_float32": {"dtype": "float32", "at_edges": True, **RAGGED, **BOTH},
        **own,
    }
    sizes: dict[str, Any] = {
        "batch": 2,
        "length": 75,
        "num_value_heads": 4,
        "num_key_heads": 2,
        "head_dim": 32,
        "v_head_dim": 32,
    }
    arguments = {name: sizes | change for name, change in flags.items()}
    return {name: problem(**{"scale": one["head_dim"] ** -0.5} | one) for name, one in arguments.items()}
