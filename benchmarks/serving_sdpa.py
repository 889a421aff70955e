"""Calls of torch's ``scaled_dot_product_attention`` on contiguous caches, of sequences that are all alike."""

from collections.abc import Callable
from typing import Any

from serving_cases import CASCADE, Case

# The backends by what peers are called, with the members of ``torch.nn.attention.SDPBackend``.
_BACKENDS = {"sdpa_cudnn_contiguous": "CUDNN_ATTENTION", "sdpa_flash_contiguous": "FLASH_ATTENTION"}


def calls(case: Case, q: Any, k: Any, v: Any) -> dict[str, Callable[[], Any] | str]:
    """The call of each backend, or why there is none; without a GPU the one that torch has for the CPU."""
    if case.kind == CASCADE or case.is_latent:
        return {}
    if reason := _lacks(case):
        return dict.fromkeys(_BACKENDS, reason)
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    p = case.problem
    pages = torch.from_numpy(case.table.astype("int64")).to(k.device)
    queries = q.reshape(p.batch, -1, p.num_q_heads, p.head_dim).transpose(1, 2)
    # As a cache is that new tokens are appended to: [B, S, K, H], seen with heads before tokens.
    keys, values = (x[pages].reshape(p.batch, -1, p.num_kv_heads, p.head_dim)[:, : p.kv_len] for x in (k, v))
    keys, values = keys.contiguous().transpose(1, 2), values.contiguous().transpose(1, 2)
    is_causal = _masked(case)
    names = {name: [SDPBackend.__members__[backend]] for name, backend in _BACKENDS.items()}
    if q.device.type == "cpu":
        names = {"sdpa_contiguous": [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]}

    def call(backend: list[SDPBackend]) -> Callable[[], Any]:
        def run() -> Any:
            with sdpa_kernel(backend):
                out = torch.nn.functional.scaled_dot_product_attention(
                    queries, keys, values, is_causal=is_causal, scale=p.scale, enable_gqa=True
                )
            return out.transpose(1, 2)

        return run

    return {name: call(backend) for name, backend in names.items()}


def _masked(case: Case) -> bool:
    """Whether a query of the case does not see all keys of its sequence."""
    return bool(case.new[0] > 1 and getattr(case.problem, "causal", True))


def _lacks(case: Case) -> str:
    if len(set(case.lengths.tolist())) > 1 or len(set(case.new.tolist())) > 1:
        return "not with sequences of different lengths"
    if _masked(case) and case.new[0] != case.problem.kv_len:
        return "its causal mask begins at the first key"
    return ""
