"""Device identity from what JAX and the driver say, and from names alone."""

import dataclasses
import types

import pytest

from attn_tune.devices import cuda_driver, figures, identity
from attn_tune.devices.aliases import alias, raw_name, variants
from attn_tune.devices.identity import (
    current_device,
    describe,
    device_from_kind,
    known_devices,
)
from attn_tune.runtime.active.row_index import match_level
from attn_tune.runtime.lookup.answer import DeviceLevel
from attn_tune.schema.errors import UsageError

RAW_NAMES = {
    "Tesla V100-SXM2-16GB": ("nvidia-v100", "sm_70", ""),
    "NVIDIA A100-SXM4-40GB": ("nvidia-a100-sxm4-40gb", "sm_80", ""),
    "A100-SXM4-40GB": ("nvidia-a100-sxm4-40gb", "sm_80", ""),
    "NVIDIA A100-SXM4-80GB": ("nvidia-a100-sxm4-80gb", "sm_80", ""),
    "NVIDIA A100-PCIE-40GB": ("nvidia-a100-pcie-40gb", "sm_80", ""),
    "NVIDIA A100 80GB PCIe": ("nvidia-a100-pcie-80gb", "sm_80", ""),
    "NVIDIA H100 80GB HBM3": ("nvidia-h100-sxm5", "sm_90", ""),
    "NVIDIA H100 PCIe": ("nvidia-h100-pcie", "sm_90", ""),
    "NVIDIA H100 NVL": ("nvidia-h100-nvl", "sm_90", ""),
    "NVIDIA H200": ("nvidia-h200", "sm_90", ""),
    "NVIDIA H200 NVL": ("nvidia-h200-nvl", "sm_90", ""),
    "NVIDIA H20": ("nvidia-h20", "sm_90", ""),
    "NVIDIA GH200 480GB": ("nvidia-gh200-96gb", "sm_90", ""),
    "NVIDIA B200": ("nvidia-b200", "sm_100", ""),
    "NVIDIA GB200": ("nvidia-gb200", "sm_100", ""),
    "NVIDIA L4": ("nvidia-l4", "sm_89", ""),
    "NVIDIA L40": ("nvidia-l40", "sm_89", ""),
    "NVIDIA L40S": ("nvidia-l40s", "sm_89", ""),
    "NVIDIA A10": ("nvidia-a10", "sm_86", ""),
    "NVIDIA A10G": ("nvidia-a10g", "sm_86", ""),
    "NVIDIA GeForce RTX 3090": ("nvidia-rtx-3090", "sm_86", ""),
    "NVIDIA GeForce RTX 4080 SUPER": ("nvidia-rtx-4080-super", "sm_89", ""),
    "NVIDIA GeForce RTX 4090 Laptop GPU": ("nvidia-rtx-4090-laptop", "sm_89", ""),
    "NVIDIA GeForce RTX 5090": ("nvidia-rtx-5090", "sm_120", ""),
    "AMD Instinct MI300X": ("amd-mi300x", "gfx942", ""),
    "AMD Instinct MI325X": ("amd-mi325x", "gfx942", ""),
    "NVIDIA H100 80GB HBM3 MIG 1g.10gb": ("nvidia-h100-sxm5", "sm_90", "mig-1g.10gb"),
    "NVIDIA A100-SXM4-40GB MIG 3g.20gb": ("nvidia-a100-sxm4-40gb", "sm_80", "mig-3g.20gb"),
    "NVIDIA H100 80GB HBM3 MIG 1g.10gb+me": ("nvidia-h100-sxm5", "sm_90", "mig-1g.10gb+me"),
    "NVIDIA H100 80GB HBM3 MIG 1g.10gb+me.all": ("nvidia-h100-sxm5", "sm_90", "mig-1g.10gb+me.all"),
    "NVIDIA H100 80GB HBM3 MIG 1c.3g.40gb": ("nvidia-h100-sxm5", "sm_90", "mig-1c.3g.40gb"),
    "NVIDIA H100 PCIe MIG 2g.20gb": ("nvidia-h100-pcie", "sm_90", "mig-2g.20gb"),
    "NVIDIA H200 MIG 7g.141gb": ("nvidia-h200", "sm_90", "mig-7g.141gb"),
    "NVIDIA B200 MIG 1g.23gb": ("nvidia-b200", "sm_100", "mig-1g.23gb"),
    "NVIDIA GB200 MIG 4g.95gb": ("nvidia-gb200", "sm_100", "mig-4g.95gb"),
    "NVIDIA RTX PRO 6000 Blackwell Server Edition MIG 1g.24gb-me": (
        "nvidia-rtx-pro-6000-blackwell-server",
        "sm_120",
        "mig-1g.24gb-me",
    ),
    "nvidia-h200/mig-1g.18gb": ("nvidia-h200", "sm_90", "mig-1g.18gb"),
    "NVIDIA B300 SXM6 AC": ("nvidia-b300", "sm_103", ""),
    "NVIDIA GB300": ("nvidia-gb300", "sm_103", ""),
    "NVIDIA GB10": ("nvidia-gb10", "sm_121", ""),
    "NVIDIA H800": ("nvidia-h800", "sm_90", ""),
    "NVIDIA A800-SXM4-80GB": ("nvidia-a800-sxm4-80gb", "sm_80", ""),
    "NVIDIA A100-SXM-64GB": ("nvidia-a100-sxm-64gb", "sm_80", ""),
    "NVIDIA RTX 6000 Ada Generation": ("nvidia-rtx-6000-ada", "sm_89", ""),
    "NVIDIA RTX PRO 6000 Blackwell Workstation Edition": (
        "nvidia-rtx-pro-6000-blackwell",
        "sm_120",
        "",
    ),
    "NVIDIA GeForce RTX 4070 Ti SUPER": ("nvidia-rtx-4070-ti-super", "sm_89", ""),
    "NVIDIA GeForce RTX 4090 D": ("nvidia-rtx-4090-d", "sm_89", ""),
    "NVIDIA GeForce RTX 5080 Laptop GPU": ("nvidia-rtx-5080-laptop", "sm_120", ""),
    "NVIDIA GeForce RTX 5090 D v2": ("nvidia-rtx-5090-d-v2", "sm_120", ""),
    "NVIDIA_H100_80GB_HBM3": ("nvidia-h100-sxm5", "sm_90", ""),
    "AMD Instinct MI300X OAM": ("amd-mi300x", "gfx942", ""),
    "AMD Instinct MI300A": ("amd-mi300a", "gfx942", ""),
    "AMD Instinct MI355X": ("amd-mi355x", "gfx950", ""),
    "TPU v5litepod": ("tpu-v5e", "v5e", ""),
    "TPU7": ("tpu-v7x", "v7x", ""),
    "tpu-7x": ("tpu-v7x", "v7x", ""),
    "TPU v2": ("tpu-v2", "v2", ""),
    "TPU v3": ("tpu-v3", "v3", ""),
    "TPU v4": ("tpu-v4", "v4", ""),
    "TPU v4 lite": ("tpu-v4i", "v4i", ""),
    "TPU v5 lite": ("tpu-v5e", "v5e", ""),
    "TPU v5e": ("tpu-v5e", "v5e", ""),
    "TPU v5": ("tpu-v5p", "v5p", ""),
    "TPU v5p": ("tpu-v5p", "v5p", ""),
    "TPU v6 lite": ("tpu-v6e", "v6e", ""),
    "TPU v6e": ("tpu-v6e", "v6e", ""),
    "TPU7x": ("tpu-v7x", "v7x", ""),
}


@pytest.mark.parametrize("raw", RAW_NAMES)
def test_raw_names(raw):
    found = alias(raw)
    assert (found.variant, found.family, found.partition) == RAW_NAMES[raw]
    # The meaning reads back as itself, so a stored variant is a valid question.
    assert device_from_kind(found.variant).variant == found.variant


@pytest.mark.parametrize(
    "raw",
    [
        "NVIDIA H1000",
        "NVIDIA H100",
        "TPU v9",
        "TPU8i",
        "TPU v5 pro",
        "",
        "NVIDIA L400",
        "NVIDIA H200 NVL 2",
        "AMD Radeon Graphics",
        "MIG 1g.10gb",
        "NVIDIA H100 80GB HBM3 MIG 1g",
    ],
)
def test_an_unknown_name_is_never_a_near_one(raw):
    assert alias(raw) is None


def test_a_slice_never_passes_for_its_board_nor_for_another_slice():
    whole, one, two = (
        device_from_kind(name) for name in ("nvidia-h200", "NVIDIA H200 MIG 1g.18gb", "NVIDIA H200 MIG 2g.35gb")
    )
    for a, b in ((whole, one), (one, two)):
        assert match_level(a, b) is match_level(b, a) is DeviceLevel.FAMILY
    assert device_from_kind(str(one)) == one
    assert (one.units, one.bandwidth_gbs, one.shared_bytes) == (0, 0, whole.shared_bytes)


def test_spellings_that_jax_itself_knows():
    """JAX's table of TPUs: what it takes for one generation is one variant here, and no two share one."""
    tpu_info = pytest.importorskip("jax._src.tpu_info", reason="this JAX has no such table")
    spellings = {
        "TPU v2",
        "TPU v3",
        "TPU v4",
        "TPU v4 lite",
        "TPU v5e",
        "TPU v5 lite",
        "TPU v5",
        "TPU v5p",
        "TPU v6e",
        "TPU v6 lite",
        "TPU7x",
    }
    by_version = {}
    for name in spellings:
        version = tpu_info.chip_version_from_device_kind(name)
        assert version is not None
        by_version.setdefault(version, set()).add(alias(name).variant)
    assert all(len(found) == 1 for found in by_version.values())
    assert len(set.union(*by_version.values())) == len(by_version)


def test_every_target_is_a_known_variant_with_limits():
    assert set(figures.FIGURES) <= set(variants())
    for variant, family in variants().items():
        device = device_from_kind(variant)
        assert device.family == family
        assert device.shared_bytes > 0
    assert set(figures.REPRESENTATIVE.values()) <= set(figures.FIGURES)


def test_targets_by_architecture():
    found = device_from_kind("sm_90a")
    assert (found.platform, found.family, found.shared_bytes) == ("cuda", "sm_90", 232448)
    assert device_from_kind("SM90") == found
    assert device_from_kind("tpu-v6e").platform == "tpu"
    assert device_from_kind("H100 PCIe") == device_from_kind("nvidia-h100-pcie")
    assert device_from_kind("cpu").platform == "cpu"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("nvidia-h2000", "did you mean 'nvidia-h200' or "),
        ("H20O", "did you mean 'h20' or 'h200' or "),
        ("foo", "'foo'; 'attn-tune "),
    ],
)
def test_an_unknown_device_is_one_short_line_with_the_near_ones(name, hint):
    with pytest.raises(UsageError) as info:
        device_from_kind(name)
    message = str(info.value)
    assert message.startswith(f"unknown device {name!r}; ")
    assert hint in message
    assert message.endswith("'attn-tune devices --all' lists those that are known")
    assert len(message) < 200


def test_every_known_device_is_found_by_its_name_and_without_its_vendor():
    for name, family in known_devices().items():
        assert device_from_kind(name).family == family
        _, dash, rest = name.partition("-")
        assert not dash or device_from_kind(rest).variant == name


def jax_device(platform, kind, **more):
    client = types.SimpleNamespace(platform_version=more.pop("version", "cuda 13000"))
    fields = {"platform": platform, "device_kind": kind, "client": client, **more}
    # Hashable by identity, as JAX's own devices are.
    return type("FakeDevice", (), fields)()


@pytest.fixture
def no_driver(monkeypatch):
    monkeypatch.setattr(cuda_driver, "_library", lambda name: None)
    cuda_driver.driver_facts.cache_clear()
    yield
    cuda_driver.driver_facts.cache_clear()


def test_a_gpu_without_a_driver_library_takes_the_published_figures(no_driver):
    found = describe(jax_device("gpu", "NVIDIA H200", compute_capability="9.0", core_count=132))
    published = device_from_kind("nvidia-h200")
    assert found == dataclasses.replace(published, power_watts=0)
    assert dict(found.evidence) == {"name": "NVIDIA H200"}


def test_figures_of_jax_come_before_the_table(no_driver):
    found = describe(jax_device("gpu", "NVIDIA X1", compute_capability="12.1", core_count=48))
    assert (found.family, found.variant, found.units) == ("sm_121", "nvidia-x1", 48)
    assert found.shared_bytes == figures.SHARED_BYTES["sm_121"]
    sliced = describe(jax_device("gpu", "NVIDIA H200 MIG 1g.18gb", compute_capability="9.0", core_count=16))
    assert (sliced.partition, sliced.units, str(sliced)) == (
        "mig-1g.18gb",
        16,
        "nvidia-h200/mig-1g.18gb",
    )


ATTRIBUTES = {13: 1980000, 36: 3201000, 37: 6144, 38: 62914560, 97: 232448, 16: 132}


class FakeCuda:
    """A driver library that answers by pointer, as the C one does."""

    def cuInit(self, flags):
        return 0

    def cuDeviceGet(self, out, ordinal):
        out._obj.value = ordinal
        return 0 if ordinal == 0 else 101

    def cuDeviceGetAttribute(self, out, number, device):
        out._obj.value = ATTRIBUTES.get(number, 0)
        return 0

    def cuDeviceGetUuid(self, out, device):
        out._obj[:] = range(16)
        return 0

    def cuDeviceTotalMem_v2(self, out, device):
        out._obj.value = 1 << 30
        return 0


class FakeManagement:
    """The management library, with a power limit that is not a round number."""

    def nvmlInit_v2(self):
        return 0

    def nvmlShutdown(self):
        return 0

    def nvmlSystemGetDriverVersion(self, out, size):
        out.value = b"580.65.06"
        return 0

    def nvmlDeviceGetHandleByPciBusId_v2(self, name, out):
        return 0

    def nvmlDeviceGetEnforcedPowerLimit(self, handle, out):
        out._obj.value = 689_500
        return 0


def test_facts_of_the_driver_describe_the_device(monkeypatch):
    libraries = {"libcuda.so.1": FakeCuda(), "libnvidia-ml.so.1": FakeManagement()}
    monkeypatch.setattr(cuda_driver, "_library", libraries.get)
    cuda_driver.driver_facts.cache_clear()
    try:
        found = describe(jax_device("gpu", "NVIDIA H200", compute_capability="9.0", local_hardware_id=0))
        lost = cuda_driver.driver_facts(5)
    finally:
        cuda_driver.driver_facts.cache_clear()
    assert (found.units, found.shared_bytes, found.l2_bytes) == (132, 232448, 62914560)
    assert (found.clock_mhz, found.bandwidth_gbs, found.power_watts) == (1980, 4917, 700)
    evidence = dict(found.evidence)
    assert evidence["uuid"] == "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"
    assert evidence["driver"] == "580.65.06"
    assert lost == cuda_driver.DriverFacts()


def test_tpus_and_amd():
    v5e = describe(jax_device("tpu", "TPU v5 lite", core_on_chip=0))
    assert (v5e.platform, v5e.family, v5e.variant) == ("tpu", "v5e", "tpu-v5e")
    assert v5e.shared_bytes == 128 * 1024 * 1024
    mi = describe(jax_device("gpu", "AMD Instinct MI300X", version="rocm 60300", compute_capability="gfx942"))
    assert (mi.platform, mi.family, mi.variant) == ("rocm", "gfx942", "amd-mi300x")


def test_the_device_here():
    import jax

    here = current_device()
    assert here == current_device(jax.devices()[0])
    if jax.default_backend() == "cpu":
        assert (here.platform, here.shared_bytes) == ("cpu", 0)
        assert here.variant == f"cpu-{here.family}"
        with jax.default_device("cpu"):
            assert current_device() == here


def test_the_override_is_logged(monkeypatch, caplog):
    identity._override.cache_clear()
    monkeypatch.setenv("ATTN_TUNE_DEVICE_AS", "NVIDIA H100 PCIe")
    assert current_device().variant == "nvidia-h100-pcie"
    assert current_device().units == 114
    assert len([r for r in caplog.records if "ATTN_TUNE_DEVICE_AS" in r.getMessage()]) == 1
    monkeypatch.setenv("ATTN_TUNE_DEVICE_AS", "abacus")
    with pytest.raises(UsageError, match="abacus"):
        current_device()


@pytest.mark.parametrize(
    ("variant", "name"),
    [
        ("nvidia-h200", "NVIDIA H200"),
        ("nvidia-h100-sxm5", "NVIDIA H100 80GB HBM3"),
        ("nvidia-a100-sxm4-40gb", "NVIDIA A100-SXM4-40GB"),
        ("nvidia-b200", "NVIDIA B200"),
        ("tpu-v5e", "TPU v5 lite"),
        ("tpu-v5p", "TPU v5"),
        ("tpu-v6e", "TPU v6 lite"),
        ("tpu-v7x", "TPU7x"),
        ("nvidia-rtx-9999", None),
    ],
)
def test_the_name_that_jax_gives_a_variant_is_known(variant, name):
    assert raw_name(variant) == name
    assert name is None or alias(name).variant == variant
