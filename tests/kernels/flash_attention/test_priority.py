"""Which kernel comes first untuned on an H200, as far as short problems were measured; the long ones are in
``test_triton_hopper``."""

import pytest

from attn_tune.kernels.flash_attention.cudnn import limits as cudnn_limits
from attn_tune.kernels.flash_attention.problem import Problem
from attn_tune.kernels.registry import get_kernel
from attn_tune.schema.device import Device

H200 = Device(platform="cuda", family="sm_90", variant="nvidia-h200", units=132)


def problem(B=4, T=4096, S=None, N=16, K=16, H=128, **flags):
    return Problem(
        batch=B, q_len=T, kv_len=S or T, num_q_heads=N, num_kv_heads=K, head_dim=H, v_head_dim=H,
        scale=H**-0.5, **flags,
    )  # fmt: skip


def untuned_forward(p):
    """The first of the kernels that can, by priority; cuDNN is taken to be here."""
    names = ("cudnn", "triton", "triton_hopper", "triton_split")
    specs = [get_kernel(f"flash_attention/{name}") for name in names]
    able = [spec for spec in specs if spec.unsupported(p, "fwd", H200) is None]
    return max(able, key=lambda spec: spec.priority_for(p, "fwd", H200)).name


@pytest.mark.parametrize(
    ("p", "first"),
    [
        # One query: cuDNN, and where it cannot, split keys.
        (problem(B=32, T=1, S=4096, N=32, K=8, causal=True), "cudnn"),
        (problem(B=1, T=1, S=1024, N=32, K=4, causal=True), "cudnn"),
        (problem(B=128, T=1, S=1024, N=16, K=1, causal=True), "cudnn"),
        (problem(B=32, T=1, S=4096, N=32, K=8, causal=True, soft_cap=30.0), "triton_split"),
        # A few, whose causal edge cuDNN does not know.
        (problem(B=32, T=4, S=4096, N=32, K=8, causal=True), "triton_split"),
        (problem(B=1, T=128, S=8192, N=32, K=8, causal=True), "triton_split"),
        (problem(B=1, T=16, S=65536, N=64, K=8, H=64, causal=True), "triton_split"),
        (problem(B=32, T=4, S=4096, N=32, K=8), "triton_split"),
        # A full tile for nearly every multiprocessor, twice; and groups that no tile holds.
        (problem(B=4, T=128, S=8192, N=33, K=33, causal=True), "triton_hopper"),
        (problem(B=4, T=128, S=8192, N=40, K=8, causal=True), "triton_hopper"),
        # As many queries as keys are an ordinary problem, however few.
        (problem(B=1, T=128, N=8, K=8, causal=True), "triton_hopper"),
        # Encoders of images.
        (problem(B=32, T=197, N=12, K=12, H=64), "cudnn"),
        (problem(B=8, T=577, N=16, K=16, H=64), "cudnn"),
        (problem(B=32, T=197, N=12, K=12, H=64, soft_cap=30.0), "triton_hopper"),
        (problem(B=32, T=197, N=12, K=12, H=64, causal=True), "triton_hopper"),
        (problem(B=16, T=1024, N=32, K=32, H=64), "triton_hopper"),
    ],
)
def test_untuned_few_queries_and_short_encoders_go_to_the_kernel_that_was_fastest(
    monkeypatch, p, first
):
    monkeypatch.setattr(cudnn_limits, "cudnn_version", lambda: (9, 19, 0))
    assert untuned_forward(p) == first


def test_on_other_gpus_split_keys_come_after_cudnn():
    a100 = Device(platform="cuda", family="sm_80", variant="nvidia-a100", units=108)
    split, cudnn = (get_kernel(f"flash_attention/{name}") for name in ("triton_split", "cudnn"))
    p = problem(B=32, T=4, S=4096, N=32, K=8)
    assert split.priority_for(p, "fwd", a100) < cudnn.priority_for(p, "fwd", a100)
