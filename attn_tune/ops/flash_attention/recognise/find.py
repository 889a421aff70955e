"""Finds the attention problems of a program, and attention that has no signature (``Op.recognise``)."""

import re
from collections.abc import Iterator

from attn_tune.ops.flash_attention.problem import Problem
from attn_tune.ops.flash_attention.recognise.cudnn import is_cudnn, read_cudnn
from attn_tune.ops.flash_attention.recognise.products import Softmax, find_attention
from attn_tune.ops.program_graph import Findings, Found, Graph, Unread, Value
from attn_tune.schema.errors import UsageError

# Kernels of others that are attention by their name.
_ATTENTION = re.compile(r"attention|attn|flash|fmha|mha|splash", re.IGNORECASE)


def find_problems(graph: Graph) -> Findings:
    """Finds all attention in ``graph``, custom calls first."""
    calls = [_custom_call(value) for value in graph.values if value.kind == "custom_call"]
    found = [one for one in calls if one is not None]
    for softmax in find_attention(graph):
        found += _softmax(softmax)
    return found


def _custom_call(value: Value) -> Found | Unread | None:
    name = str(value.attributes["name"])
    if is_cudnn(value):
        try:
            problem, direction = read_cudnn(value)
        except UsageError as error:
            return Unread(what=name, reason=str(error), count=value.runs)
        return Found(problem=problem, direction=direction, count=value.runs, found_as="cuDNN")
    if _ATTENTION.search(f"{name} {value.attributes.get('config', '')}"):
        reason = "a kernel of its own: its operands do not say what it computes"
        return Unread(what=name, reason=reason, count=value.runs)
    return None


def _softmax(softmax: Softmax) -> Iterator[Found | Unread]:
    sizes, traits = softmax.sizes, softmax.traits
    what = (
        f"softmax(q k^T) v with b={sizes.batch} t={sizes.q_len} s={sizes.kv_len} n={sizes.num_q_heads} "
        f"k={sizes.num_kv_heads} h={sizes.head_dim} v={sizes.v_head_dim} dtype={sizes.dtype}"
    )
    count = max(softmax.forwards, softmax.backwards)
    if softmax.reason:
        yield Unread(what=what, reason=softmax.reason, count=count)
        return
    mask = traits.mask
    try:
        problem = Problem(
            batch=sizes.batch,
            q_len=sizes.q_len,
            kv_len=sizes.kv_len,
            num_q_heads=sizes.num_q_heads,
            num_kv_heads=sizes.num_kv_heads,
            head_dim=sizes.head_dim,
            v_head_dim=sizes.v_head_dim,
            dtype=sizes.dtype,
            causal=mask.causal,
            window=(mask.left, mask.right),
            mask_dims=_dims(mask.dims),
            bias_dims=_dims(traits.bias_dims),
            has_segments=mask.has_segments,
            has_sinks=traits.has_sinks,
            # Whether there is one is in the signature, not which.
            soft_cap=1.0 if traits.soft_cap else None,
            dropout_rate=0.5 if traits.dropout else 0.0,
        )
    except UsageError as error:
        yield Unread(what=what, reason=str(error), count=count)
        return
    for direction, runs in (("fwd", softmax.forwards), ("bwd", softmax.backwards)):
        if runs:
            yield Found(
                problem=problem,
                direction=direction,
                count=runs,
                found_as="products and a softmax",
                remark=sizes.remark,
            )


def _dims(letters: frozenset[str]) -> str | None:
    return "".join(x if x in letters else "1" for x in "bnts") if letters else None
