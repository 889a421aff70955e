"""The other implementations a JAX user can call, behind one shape of function.

Each peer is ``build(problem) -> (query, key, value, sinks) -> out`` or a sentence that says why it cannot. Peers that
are not installed are left out, and the report says so.
"""

import functools
import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from attn_tune.kernels.flash_attention.problem import Problem

type Attend = Callable[..., Any]


@dataclass(frozen=True, kw_only=True)
class Peer:
    """One implementation: ``build`` returns a function of arrays, or the reason why there is none."""

    name: str
    build: Callable[[Problem], Attend | str]
    # Run once on concrete arrays before anything is timed: where a peer tunes itself.
    prepare: Callable[[Attend, tuple], None] | None = None


def peers(ejkernel: str) -> list[Peer]:
    """Ours (whatever the active packs choose, our kernels by name, untuned), then everybody else's.

    ``ejkernel``: ``"default"`` for its heuristic configs, ``"tuned"`` for those it finds itself in an eager call. One
    of the two per process: it keeps whichever it used first. ``"none"`` leaves it out.
    """
    found = [
        Peer(name="attn-tune auto", build=_ours),
        Peer(name="attn-tune triton", build=lambda p: _ours(p, platform="triton")),
        Peer(name="attn-tune triton untuned", build=_heuristic),
        Peer(name="attn-tune xla", build=lambda p: _ours(p, platform="xla")),
        Peer(name="jax.nn cuDNN", build=_cudnn),
    ]
    if importlib.util.find_spec("tokamax"):
        found += [
            Peer(name=f"tokamax {name}", build=functools.partial(_tokamax, name))
            for name in ("mosaic", "triton")
        ]
    if ejkernel != "none" and importlib.util.find_spec("ejkernel"):
        os.environ["EJKERNEL_AUTOTUNE_POLICY"] = "autotune" if ejkernel == "tuned" else "heuristics"
        prepare = _tune_ejkernel if ejkernel == "tuned" else None
        found.append(Peer(name=f"ejkernel triton {ejkernel}", build=_ejkernel, prepare=prepare))
    return found


def _ours(problem: Problem, **options: Any) -> Attend | str:
    import attn_tune

    def attend(query, key, value, sinks=None):
        return attn_tune.flash_attention(
            query,
            key,
            value,
            softmax_aux=sinks,
            causal=problem.causal,
            sliding_window=None if problem.window == (None, None) else problem.window,
            logits_soft_cap=problem.soft_cap,
            softmax_scale=problem.scale,
            **options,
        )

    return attend


def _heuristic(problem: Problem) -> Attend | str:
    from attn_tune.kernels.registry import get_kernel
    from attn_tune.runtime.devices import current_device

    spec, device = get_kernel("flash_attention/triton"), current_device()
    reason = spec.unsupported(problem, "fwd", device)
    if reason:
        return reason
    cfg = {name: search.heuristic(problem, device) for name, search in spec.searches.items()}
    return _ours(problem, platform="triton", cfg=cfg)


def _cudnn(problem: Problem) -> Attend | str:
    import jax

    if problem.soft_cap is not None:
        return "jax.nn.dot_product_attention has no soft cap"
    if problem.has_sinks:
        return "jax.nn.dot_product_attention has no sinks"
    if problem.dtype == "float32":
        return "cuDNN attention has no float32"
    window = None
    if problem.window != (None, None):
        left, right = problem.bounds
        window = (left or 0, right or 0)

    def attend(query, key, value, sinks=None):
        del sinks
        return jax.nn.dot_product_attention(
            query,
            key,
            value,
            scale=problem.scale,
            is_causal=problem.causal,
            local_window_size=window,
            implementation="cudnn",
        )

    return attend


def _tokamax(implementation: str, problem: Problem) -> Attend | str:
    """Its public call, with the configs that it ships or its heuristics."""
    if problem.has_sinks:
        return "tokamax.dot_product_attention has no sinks"
    if problem.q_len != problem.kv_len and problem.bounds != (None, None):
        return "tokamax.dot_product_attention aligns masks at the top left"
    if implementation == "mosaic" and problem.dtype == "float32":
        return "tokamax's Mosaic GPU attention rounds float32 to 16 bits"
    left, right = problem.window
    if (left is None) != (right is None) and not problem.causal:
        return "tokamax.dot_product_attention has no one-sided window"
    window = None if left is None else (left, right or 0)
    import tokamax

    def attend(query, key, value, sinks=None):
        del sinks
        return tokamax.dot_product_attention(
            query,
            key,
            value,
            scale=problem.scale,
            is_causal=problem.causal,
            local_window_size=window,
            logits_soft_cap=problem.soft_cap,
            implementation=implementation,
        )

    return attend


def _ejkernel(problem: Problem) -> Attend | str:
    if problem.dtype == "float32":
        return "ejkernel's Triton kernel takes float16 and bfloat16"
    from ejkernel.modules import flash_attention

    window = None
    if problem.window != (None, None):
        left, right = problem.bounds
        window = (left if left is not None else problem.kv_len, right or 0)

    def attend(query, key, value, sinks=None):
        return flash_attention(
            query,
            key,
            value,
            None,
            None,
            None,
            sinks,
            causal=problem.causal,
            sliding_window=window,
            logits_soft_cap=problem.soft_cap,
            softmax_scale=problem.scale,
            platform="triton",
        )

    return attend


def _tune_ejkernel(attend: Attend, arrays: tuple) -> None:
    """Its own tuning: an eager call times its candidates, forward and backward together, and keeps the winner."""
    import jax

    jax.block_until_ready(attend(*arrays))
