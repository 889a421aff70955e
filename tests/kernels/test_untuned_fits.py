"""Untuned choices of wide tiles for devices that are absent: they fit shared memory, or XLA answers."""

import dataclasses
import importlib.metadata
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from attn_tune.devices.identity import device_from_kind
from attn_tune.kernels.lang.triton import limits
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
def triton_is(monkeypatch):
    """Has a version of Triton seem to be installed."""
    real = importlib.metadata.version

    def seems(wanted):
        monkeypatch.setattr(importlib.metadata, "version", lambda name: wanted if name == "triton" else real(name))
        refuses_triton.cache_clear()

    yield seems
    refuses_triton.cache_clear()


@pytest.fixture
def older_triton(triton_is):
    triton_is("3.7.1")


@pytest.mark.parametrize(
    ("version", "is_enough"),
    [
        *((text, True) for text in ("3.8.0", "3.8.0a1", "3.9+git123", "3.9rc1", "3.10.0", "4", "3.8.0.post1")),
        *((text, False) for text in ("3.7.9", "3", "2.12", "3.7+git")),
    ],
)
def test_a_version_of_triton_is_read_in_all_its_forms(version, is_enough, triton_is):
    triton_is(version)
    assert (refuses_triton((3, 8)) is None) == is_enough


@pytest.mark.parametrize("version", [None, "", "unknown"])
def test_a_triton_without_a_version_is_none(version, triton_is, monkeypatch):
    triton_is(version)
    assert refuses_triton((3, 6)).startswith("triton is not installed")
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "3.9.0" if name == "pytorch-triton" else version)
    refuses_triton.cache_clear()
    assert version == "unknown" or refuses_triton((3, 6)) is None


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
    monkeypatch.setenv("TRITON_PTXAS_PATH", assembler_of("12.8.93"))
    reason = unsupported(problem, direction, h200)
    assert (reason is not None) == needs
    assert not needs or "it needs the assembler of CUDA 12.9 or later, and would have ptxas 12.8.93" in reason
    for version in ("12.9.86", "13.0.48"):
        monkeypatch.setenv("TRITON_PTXAS_PATH", assembler_of(version))
        assert unsupported(problem, direction, h200) is None


def test_triton_takes_its_own_assembler_where_the_one_that_is_named_does_not_run(older_triton, monkeypatch):
    h200 = device_from_kind("nvidia-h200")
    monkeypatch.setattr(limits, "_PROVEN_ASSEMBLER", (99, 0))
    monkeypatch.delenv("TRITON_PTXAS_PATH", raising=False)
    own = refuses_assembler(h200)
    assert "would have ptxas 12." in own
    for path in ("", "/no/such/assembler", "/bin/true"):
        monkeypatch.setenv("TRITON_PTXAS_PATH", path)
        assert refuses_assembler(h200) == own


def test_hopper_has_the_newer_assembler_of_a_newer_triton(assembler_of, triton_is, monkeypatch):
    h200, a100 = device_from_kind("nvidia-h200"), device_from_kind("nvidia-a100-sxm4-80gb")
    triton_is("3.9.0")
    monkeypatch.setenv("TRITON_PTXAS_PATH", assembler_of("12.8.61"))
    monkeypatch.setenv("TRITON_PTXAS_BLACKWELL_PATH", assembler_of("13.4.59"))
    assert refuses_assembler(h200) is None
    assert "would have ptxas 12.8.61" in refuses_assembler(a100)
    monkeypatch.setenv("TRITON_PTXAS_BLACKWELL_PATH", assembler_of("12.8.93"))
    assert "name a newer one by TRITON_PTXAS_BLACKWELL_PATH" in refuses_assembler(h200)


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


def test_a_backward_without_states_needs_a_newer_triton_on_hopper(triton_is):
    triton_is("3.6.0")
    samples, spec = load(get_op("gated_delta_rule").samples)(), get_kernel("gated_delta_rule/triton_hopper")
    wide = {name: dataclasses.replace(samples[name], head_dim=64, v_head_dim=64) for name in ("plain", "states")}
    h200 = device_from_kind("nvidia-h200")
    assert "needs Triton 3.7 or later" in str(spec.unsupported(wide["plain"], "bwd", h200))
    assert spec.unsupported(wide["plain"], "fwd", h200) is None
    assert spec.unsupported(wide["states"], "bwd", h200) is None


FLASH = "flash_attention/v1 b=1 t=512 s=512 n=4 k=4"
BLOCKS = "block_sparse_attention/v1 b=1 t=512 s=512 n=4 k=4"
LATENTS = "s=77 n=6 k=1 h=576 v=512 page=64 layout=latent dtype=bfloat16"


@pytest.mark.parametrize(
    ("kernel", "text", "oldest"),
    [
        ("triton", f"{FLASH} h=128 v=128 dtype=float32", "3.8"),
        ("triton_fused", f"{FLASH} h=128 v=128 dtype=float32", "3.8"),
        ("triton", f"{BLOCKS} h=128 v=128 dtype=float32", "3.8"),
        ("triton", f"{FLASH} h=64 v=64 dtype=float32", None),
        ("triton", f"{FLASH} h=128 v=128 dtype=bfloat16", None),
        ("triton", f"paged_decode/v1 b=2 t=1 {LATENTS}", "3.9"),
        ("triton_latent", f"ragged_paged/v1 b=2 t=9 {LATENTS}", "3.9"),
    ],
)
def test_blackwell_needs_a_newer_triton_for_what_older_ones_cannot_fit(kernel, text, oldest, triton_is):
    op = get_op(text.partition("/")[0])
    problem, spec = op.from_signature(op.parse_signature(text)), get_kernel(f"{op.name}/{kernel}")
    triton_is("3.7.1")
    direction = op.directions[-1]
    reason = spec.unsupported(problem, direction, device_from_kind("nvidia-b200"))
    assert reason is None if oldest is None else f"needs Triton {oldest} or later" in reason
    assert spec.unsupported(problem, direction, device_from_kind("nvidia-rtx-pro-6000-blackwell")) is None
    triton_is("3.9.0")
    assert spec.unsupported(problem, direction, device_from_kind("nvidia-b200")) is None


@pytest.mark.parametrize(
    "text",
    [
        "paged_decode/v1 b=2 t=1 s=77 n=4 k=2 h=128 v=128 page=16 dtype=bfloat16",
        "ragged_paged/v1 b=2 t=9 s=77 n=4 k=2 h=128 v=128 page=16 dtype=bfloat16",
        f"paged_decode/v1 b=2 t=1 {LATENTS}",
        f"ragged_paged/v1 b=2 t=9 {LATENTS}",
    ],
)
def test_soft_caps_whose_tanh_would_lose_digits_are_left_to_xla(text):
    op, h200 = get_op(text.partition("/")[0]), device_from_kind("nvidia-h200")
    problem = op.from_signature(op.parse_signature(text))
    usual, large = (dataclasses.replace(problem, soft_cap=cap) for cap in (50.0, 2000.0))
    assert choose(op.name, "fwd", usual, device=h200).spec.name.startswith("triton")
    chosen = choose(op.name, "fwd", large, device=h200)
    # That of Hopper has a series near zero for large caps.
    assert chosen.spec.name in ("xla", "triton_hopper")


ROWS = [
    ("ragged_paged", "triton_latent", "t=9 s=77 n=6 k=1 h=144 v=128 page=8", "kv=float8_e4m3fn kvscale=block", 164),
    ("ragged_paged", "triton_latent", "t=9 s=77 n=6 k=1 h=36 v=32 page=8", "", 72),
    ("paged_decode", "triton", "t=1 s=77 n=6 k=1 h=40 v=32 page=8", "kv=float8_e4m3fn kvscale=head", 40),
    ("paged_decode", "triton", "t=1 s=77 n=6 k=1 h=48 v=32 page=8", "kv=float8_e4m3fn kvscale=head", None),
    ("paged_decode", "triton", "t=1 s=77 n=6 k=1 h=36 v=32", "", None),
]


@pytest.mark.parametrize(("name", "kernel", "sizes", "codes", "row"), ROWS)
def test_rows_of_latents_that_triton_3_6_reads_too_wide_are_left_out(name, kernel, sizes, codes, row, triton_is):
    op, spec, h200 = get_op(name), get_kernel(f"{name}/{kernel}"), device_from_kind("nvidia-h200")
    text = f"{name}/v1 b=2 {sizes} layout=latent dtype=bfloat16 {codes}".strip()
    problem = op.from_signature(op.parse_signature(text))
    triton_is("3.6.0")
    reason = spec.unsupported(problem, "fwd", h200)
    if row is None:
        assert reason is None
    else:
        assert f"its rows of {row} bytes are no multiple of 16: it needs Triton 3.7" in reason
    triton_is("3.7.1")
    assert spec.unsupported(problem, "fwd", h200) is None


def test_the_script_of_copies_that_are_too_wide_shows_none_with_this_triton(tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "upstream" / "older-compilers.md").read_text()
    (script,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    # Triton reads the source of a kernel from its file.
    (tmp_path / "copies.py").write_text(script)
    environment = os.environ | {"TRITON_CACHE_DIR": str(tmp_path), "TRITON_INTERPRET": "0"}
    run = subprocess.run([sys.executable, "copies.py"], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert run.stdout == "False ['0x4']\nTrue ['0x4']\n", run.stderr
