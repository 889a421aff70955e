"""Untuned choices of wide tiles for devices that are absent: they fit shared memory, or XLA answers."""

import dataclasses
import importlib.metadata

import pytest

from attn_tune.devices.identity import device_from_kind
from attn_tune.kernels.lang.triton.limits import refuses_assembler, refuses_triton
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
def test_chunks_need_a_newer_triton_on_blackwell_alone(name, older_triton, assembler_of, monkeypatch):
    spec = get_kernel(f"{name}/triton")
    problem = next(iter(load(get_op(name).samples)().values()))
    monkeypatch.setenv("TRITON_PTXAS_PATH", assembler_of("13.0.88"))
    assert spec.unsupported(problem, "fwd", device_from_kind("nvidia-h200")) is None
    reason = spec.unsupported(problem, "fwd", device_from_kind("nvidia-b200"))
    assert "needs Triton 3.8 or later; 3.7.1" in str(reason)


@pytest.fixture
def assembler_of(tmp_path):
    """Writes what says that it is the assembler of a version, and gives its path."""

    def written(version):
        path = tmp_path / f"ptxas-{version}"
        path.write_text(f"#!/bin/sh\necho 'Cuda compilation tools, release {version[:4]}, V{version}'\n")
        path.chmod(0o755)
        return str(path)

    return written


@pytest.mark.parametrize(("name", "needs"), [("kda", True), ("gla", True), ("linear_attention", False)])
@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_gates_a_channel_are_not_left_to_an_older_assembler(
    name, needs, direction, older_triton, assembler_of, monkeypatch
):
    problem, h200 = next(iter(load(get_op(name).samples)().values())), device_from_kind("nvidia-h200")
    unsupported = get_kernel(f"{name}/triton").unsupported
    # Triton takes its own where the one that is named does not run.
    for path in ("", "/no/such/assembler", "/bin/true", assembler_of("12.8.93"), assembler_of("12.9.86")):
        monkeypatch.setenv("TRITON_PTXAS_PATH", path)
        reason = unsupported(problem, direction, h200)
        assert (reason is not None) == needs
        assert not needs or "it needs the assembler of CUDA 13, and would have ptxas 12." in reason
    monkeypatch.setenv("TRITON_PTXAS_PATH", assembler_of("13.0.48"))
    assert unsupported(problem, direction, h200) is None


def test_hopper_has_the_newer_assembler_of_a_newer_triton(assembler_of, monkeypatch):
    h200, a100 = device_from_kind("nvidia-h200"), device_from_kind("nvidia-a100-sxm4-80gb")
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "3.9.0")
    refuses_triton.cache_clear()
    monkeypatch.setenv("TRITON_PTXAS_PATH", assembler_of("12.9.86"))
    monkeypatch.setenv("TRITON_PTXAS_BLACKWELL_PATH", assembler_of("13.4.59"))
    assert refuses_assembler(h200) is None
    assert "would have ptxas 12.9.86" in refuses_assembler(a100)
    monkeypatch.setenv("TRITON_PTXAS_BLACKWELL_PATH", assembler_of("12.8.93"))
    assert "name a newer one by TRITON_PTXAS_BLACKWELL_PATH" in refuses_assembler(h200)
    refuses_triton.cache_clear()


def test_the_reason_names_the_assembler_of_the_wheels_of_jax(older_triton, assembler_of, monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_PTXAS_PATH", assembler_of("12.8.93"))
    path = tmp_path / "nvidia" / "cu13" / "bin" / "ptxas"
    path.parent.mkdir(parents=True)
    path.touch()
    info = tmp_path / "nvidia_cuda_nvcc-13.0.88.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: nvidia-cuda-nvcc\nVersion: 13.0.88\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert refuses_assembler(device_from_kind("nvidia-h200")).endswith(f"by TRITON_PTXAS_PATH, such as {path}")


def test_a_backward_without_states_needs_a_newer_triton_on_hopper(monkeypatch):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "3.6.0")
    refuses_triton.cache_clear()
    samples, spec = load(get_op("gated_delta_rule").samples)(), get_kernel("gated_delta_rule/triton_hopper")
    wide = {name: dataclasses.replace(samples[name], head_dim=64, v_head_dim=64) for name in ("plain", "states")}
    h200 = device_from_kind("nvidia-h200")
    assert "needs Triton 3.7 or later" in str(spec.unsupported(wide["plain"], "bwd", h200))
    assert spec.unsupported(wide["plain"], "fwd", h200) is None
    assert spec.unsupported(wide["states"], "bwd", h200) is None
    refuses_triton.cache_clear()
