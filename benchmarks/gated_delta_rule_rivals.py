"""The gated delta rule by other projects, in torch: the device time of their kernels."""

from collections.abc import Callable, Mapping
from typing import Any

from torch_busy import median_us

from attn_tune.ops.gated_delta_rule.problem import Problem


def fla_us(problem: Problem, direction: str, rounds: int) -> float:
    """The median device time of fla's kernels in microseconds, of the backward without the forward."""
    import torch
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule, fused_recurrent_gated_delta_rule

    p, given = problem, _arrays(problem)
    states = {"initial_state": _states(p) if p.has_initial_state else None, "output_final_state": p.has_final_state}
    rule = fused_recurrent_gated_delta_rule if p.length == 1 else chunk_gated_delta_rule
    if direction == "bwd":
        given = {name: x.requires_grad_() for name, x in given.items()}
    dout = torch.randn_like(given["v"])

    def forward() -> Any:
        return rule(**given, scale=p.scale, **states)[0]

    def prepared() -> Any:
        if direction == "fwd":
            return lambda: torch.no_grad()(forward)()
        out = forward()
        return lambda: torch.autograd.grad(out, list(given.values()), dout)

    return median_us(prepared, rounds)


def flashinfer_us(problem: Problem, direction: str, rounds: int) -> float:
    """The median device time of FlashInfer's kernels in microseconds; its states have values before keys.

    A step of decoding computes its gates itself, and updates the states in place.

    Raises:
      ValueError: a backward, which it does not have.
    """
    from serving_flashinfer import prepare

    prepare()
    import torch
    from flashinfer.gdn_decode import gated_delta_rule_decode_pretranspose
    from flashinfer.gdn_prefill import chunk_gated_delta_rule

    if direction == "bwd":
        raise ValueError("FlashInfer has no backward of it")
    p, given = problem, _arrays(problem)
    states = _states(p).swapaxes(-1, -2).contiguous()
    if p.length == 1:
        q, k, v, a, b = (given[name] for name in ("q", "k", "v", "g", "beta"))
        numbers = torch.zeros(p.num_value_heads, device="cuda")
        arrays = q, k, v, states, numbers, a.to(q.dtype), numbers, b.to(q.dtype)
        out = torch.empty_like(v)
        return median_us(
            lambda: lambda: gated_delta_rule_decode_pretranspose(*arrays, p.scale, out, use_qk_l2norm=False), rounds
        )
    # Sequences lie end to end, and gates are factors.
    q, k, v, g, beta = (given[name].flatten(0, 1) for name in ("q", "k", "v", "g", "beta"))
    ends = torch.arange(p.batch + 1, device="cuda") * p.length
    initial = states if p.has_initial_state else None
    finals = torch.empty_like(states) if p.has_final_state else None
    more = {"initial_state": initial, "output_final_state": p.has_final_state, "output_state": finals}
    arrays = q, k, v, g.exp(), beta, p.scale
    return median_us(lambda: lambda: chunk_gated_delta_rule(*arrays, cu_seqlens=ends, **more), rounds)


# How long a call takes, by the package that has to be there.
RIVALS: Mapping[str, Callable[[Problem, str, int], float]] = {"fla": fla_us, "flashinfer": flashinfer_us}


def _arrays(p: Problem) -> dict[str, Any]:
    import torch

    torch.manual_seed(0)

    def unit() -> Any:
        drawn = torch.randn(p.batch, p.length, p.num_key_heads, p.head_dim, device="cuda")
        return torch.nn.functional.normalize(drawn, dim=-1).to(torch.bfloat16)

    values = (p.batch, p.length, p.num_value_heads)
    return {
        "q": unit(),
        "k": unit(),
        "v": torch.randn(*values, p.v_head_dim, device="cuda", dtype=torch.bfloat16),
        "g": -torch.nn.functional.softplus(torch.randn(*values, device="cuda")),
        "beta": torch.rand(*values, device="cuda"),
    }


def _states(p: Problem) -> Any:
    import torch

    return torch.zeros(p.batch, p.num_value_heads, p.head_dim, p.v_head_dim, device="cuda")
