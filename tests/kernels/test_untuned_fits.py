"""Untuned choices of wide tiles for devices that are absent: they fit shared memory, or XLA answers."""

import importlib.metadata

import pytest

from attn_tune.devices.identity import device_from_kind
from attn_tune.kernels.lang.triton.limits import refuses_triton
from attn_tune.kernels.registry import get_kernel
from attn_tune.ops.contract import load
from attn_tune.ops.registry import get_op
from attn_tune.runtime.lookup.dispatch import choose
from tests.kernels.triton_lowered import launches

PROBLEMS = {
    "decode": "paged_decode/v1 b=8 t=4 s=4096 n=128 k=1 h=576 v=512 page=64 layout=latent",
    "ragged": "ragged_paged/v1 b=8 t=900 s=700 n=16 k=1 h=576 v=512 page=64 layout=latent",
    "flash": "flash_attention/v1 b=1 t=1024 s=1024 n=4 k=4 h=256 v=256",
    "sparse": "sparse_mla/v1 b=1 t=64 s=4096 n=128 h=576 v=512 top=2048",
}


def chosen(name, dtype, kind):
    text = f"{PROBLEMS[name]} dtype={dtype}"
    op = get_op(text.partition("/")[0])
    problem = op.from_signature(op.parse_signature(text))
    return op, problem, choose(op.name, "fwd", problem, device=device_from_kind(kind))


@pytest.mark.parametrize("name", ["decode", "ragged", "sparse"])
@pytest.mark.parametrize("kind", ["nvidia-l40s", "nvidia-rtx-pro-6000-blackwell"])
def test_latents_of_float32_that_no_tile_holds_are_left_to_xla(name, kind):
    assert chosen(name, "float32", kind)[2].spec.name == "xla"
    assert chosen(name, "bfloat16", kind)[2].spec.name.startswith("triton")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("decode", "nvidia-a100-sxm4-80gb"),
        ("ragged", "nvidia-a100-sxm4-80gb"),
        ("flash", "nvidia-l40s"),
    ],
)
def test_the_untuned_tile_of_wide_float32_fits(name, kind):
    op, problem, choice = chosen(name, "float32", kind)
    assert choice.spec.name.startswith("triton")
    capability = int(device_from_kind(kind).family.removeprefix("sm_"))
    compiled = launches(op, problem, choice.spec.searches["fwd"], choice.config, capability=capability)
    assert compiled[0].shared_bytes > 50_000


@pytest.fixture
def older_triton(monkeypatch):
    real = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "3.7.1" if name == "triton" else real(name))
    refuses_triton.cache_clear()
    yield
    refuses_triton.cache_clear()


@pytest.mark.parametrize("name", ["kda", "gla", "linear_attention", "gated_delta_rule"])
def test_chunks_need_a_newer_triton_on_blackwell_alone(name, older_triton):
    spec = get_kernel(f"{name}/triton")
    problem = next(iter(load(get_op(name).samples)().values()))
    assert spec.unsupported(problem, "fwd", device_from_kind("nvidia-h200")) is None
    reason = spec.unsupported(problem, "fwd", device_from_kind("nvidia-b200"))
    assert "needs Triton 3.8 or later; 3.7.1" in str(reason)
