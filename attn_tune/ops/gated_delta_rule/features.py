"""Small problems that are hard to get right."""

import dataclasses
from typing import Any

from attn_tune.ops.gated_delta_rule.problem import Problem

# Value heads of every kind of ``Problem.at_edges``.
MAX_KEY_HEADS, MAX_GROUP = 2, 4
# More than one chunk of any kernel and no multiple; less than any chunk.
LONG, SHORT = 333, 7
# Every length of ``Problem.at_edges`` once, and a rest.
SEQUENCES = 8


def features(problem: Problem) -> tuple[Problem, ...]:
    """Variants of a problem on which a config of it must also be right.

    Flags, dtype, head dims and groups are the problem's own; heads are a few. There are many tokens, a few and one, no
    multiple of any chunk. Gates are zero, tiny, strong and full resets, strengths go up to two, and keys repeat. Of a
    ragged call sequences are empty, have one token or are cut by every chunk, and some tokens belong to none.
    """
    p = problem
    heads = min(p.num_key_heads, MAX_KEY_HEADS)
    group = min(p.group_size, MAX_GROUP)
    # With one head only gates of one kind would be tried.
    if heads * group < 3:
        heads = 3 if group == 1 else 2
    small = dataclasses.replace(p, num_key_heads=heads, num_value_heads=heads * group, workload="eq")
    most = SEQUENCES if p.ragged else 2
    sizes = ((most, LONG, True), (most, LONG, False), (2, SHORT, True), (1, 1, False))
    return tuple(
        dataclasses.replace(small, batch=batch, length=length, at_edges=at_edges) for batch, length, at_edges in sizes
    )


def samples() -> dict[str, Problem]:
    """Tiny problems by name: each feature alone, then combinations."""
    both = {"has_initial_state": True, "has_final_state": True}
    ragged = {"ragged": True, "batch": SEQUENCES, "length": 150}
    return {
        "plain": _tiny(),
        "at_edges": _tiny(at_edges=True),
        "float32": _tiny(dtype="float32"),
        "float32_at_edges": _tiny(dtype="float32", at_edges=True, **both),
        "float16": _tiny(dtype="float16", at_edges=True),
        "no_gate": _tiny(gate="none"),
        "no_beta": _tiny(has_beta=False),
        "delta_rule": _tiny(gate="none", at_edges=True, **both),
        "neither": _tiny(gate="none", has_beta=False, **both),
        "state_in": _tiny(has_initial_state=True),
        "state_out": _tiny(has_final_state=True),
        "states": _tiny(at_edges=True, **both),
        "equal_heads": _tiny(num_value_heads=3, num_key_heads=3, at_edges=True),
        "one_key_head": _tiny(num_value_heads=5, num_key_heads=1, at_edges=True),
        "wider_values": _tiny(head_dim=16, v_head_dim=64, **both),
        "narrower_values": _tiny(head_dim=64, v_head_dim=16, **both),
        "odd_dims": _tiny(head_dim=20, v_head_dim=36, at_edges=True, **both),
        "one_token": _tiny(length=1, batch=5, **both),
        "one_token_at_edges": _tiny(length=1, batch=5, at_edges=True, **both),
        "four_tokens": _tiny(length=4, batch=3, at_edges=True, **both),
        "many_tokens": _tiny(length=300, batch=1, at_edges=True, **both),
        "scale": _tiny(scale=1.0),
        "ragged": _tiny(**ragged),
        "ragged_at_edges": _tiny(at_edges=True, **ragged),
        "ragged_states": _tiny(at_edges=True, **ragged, **both),
        "ragged_tokens": _tiny(ragged=True, batch=9, length=9, **both),
        "ragged_mixed": _tiny(ragged=True, batch=9, length=70, workload="mix", **both),
        "ragged_float32": _tiny(dtype="float32", at_edges=True, **ragged, **both),
        "ragged_delta_rule": _tiny(gate="none", has_beta=False, at_edges=True, **ragged, **both),
    }


def _tiny(
    *,
    batch: int = 2,
    length: int = 75,
    num_value_heads: int = 4,
    num_key_heads: int = 2,
    head_dim: int = 32,
    v_head_dim: int = 32,
    scale: float | None = None,
    **flags: Any,
) -> Problem:
    return Problem(
        batch=batch,
        length=length,
        num_value_heads=num_value_heads,
        num_key_heads=num_key_heads,
        head_dim=head_dim,
        v_head_dim=v_head_dim,
        scale=head_dim**-0.5 if scale is None else scale,
        **flags,
    )
