"""Marketing names: from the raw name a driver reports to (variant, family), by one tested table.

Names are matched word by word after normalising (case, separators, vendor and memory words), never by
prefix: an unknown name becomes its own variant rather than a wrong one.
"""

import functools
import re
from dataclasses import dataclass

# A slice, with the compute instance within it ("1c.") and what it has or lacks ("+me", "+gfx", "-me").
_MIG = re.compile(
    r"\bMIG[ -]((?:[0-9]+c\.)?[0-9]+g\.[0-9]+gb(?:[+-][a-z]+(?:\.[a-z]+)*)*)(?![a-z0-9.])",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Alias:
    """A raw name's meaning. ``family`` is ``""`` when only the driver can tell; ``partition`` is the MIG slice.

    Attributes:
      variant: the model, as published.
    """

    variant: str
    family: str
    partition: str = ""


# Raw names by variant; the first one is that of JAX (``device_kind``).
_RAW: dict[tuple[str, str], tuple[str, ...]] = {
    ("nvidia-v100", "sm_70"): (
        "Tesla V100-SXM2-16GB",
        "Tesla V100-SXM2-32GB",
        "Tesla V100-PCIE-16GB",
        "Tesla V100-PCIE-32GB",
    ),
    ("nvidia-t4", "sm_75"): ("Tesla T4", "NVIDIA T4"),
    ("nvidia-a100-sxm4-40gb", "sm_80"): (
        "NVIDIA A100-SXM4-40GB",
        "A100-SXM4-40GB",
        "NVIDIA A100 SXM4 40GB",
    ),
    ("nvidia-a100-sxm4-80gb", "sm_80"): ("NVIDIA A100-SXM4-80GB", "NVIDIA A100-SXM-80GB"),
    ("nvidia-a100-sxm-64gb", "sm_80"): ("NVIDIA A100-SXM-64GB",),
    ("nvidia-a800-sxm4-40gb", "sm_80"): ("NVIDIA A800-SXM4-40GB",),
    ("nvidia-a800-sxm4-80gb", "sm_80"): ("NVIDIA A800-SXM4-80GB",),
    ("nvidia-a800-pcie-80gb", "sm_80"): ("NVIDIA A800 80GB PCIe",),
    ("nvidia-a30", "sm_80"): ("NVIDIA A30",),
    ("nvidia-a100-pcie-40gb", "sm_80"): ("NVIDIA A100-PCIE-40GB", "A100-PCIE-40GB"),
    ("nvidia-a100-pcie-80gb", "sm_80"): ("NVIDIA A100 80GB PCIe", "NVIDIA A100-PCIE-80GB"),
    ("nvidia-a10", "sm_86"): ("NVIDIA A10",),
    ("nvidia-a10g", "sm_86"): ("NVIDIA A10G",),
    ("nvidia-a40", "sm_86"): ("NVIDIA A40",),
    ("nvidia-rtx-a5000", "sm_86"): ("NVIDIA RTX A5000",),
    ("nvidia-rtx-a6000", "sm_86"): ("NVIDIA RTX A6000",),
    ("nvidia-h800", "sm_90"): ("NVIDIA H800", "NVIDIA H800 SXM5"),
    ("nvidia-h800-pcie", "sm_90"): ("NVIDIA H800 PCIe",),
    ("nvidia-h100-sxm5", "sm_90"): (
        "NVIDIA H100 80GB HBM3",
        "NVIDIA H100 SXM5 80GB",
        "NVIDIA H100 SXM5",
    ),
    ("nvidia-h100-pcie", "sm_90"): ("NVIDIA H100 PCIe",),
    ("nvidia-h100-nvl", "sm_90"): ("NVIDIA H100 NVL",),
    ("nvidia-h200", "sm_90"): ("NVIDIA H200", "NVIDIA H200 141GB HBM3e", "NVIDIA H200 SXM"),
    ("nvidia-h200-nvl", "sm_90"): ("NVIDIA H200 NVL",),
    ("nvidia-h20", "sm_90"): ("NVIDIA H20", "NVIDIA H20-3e"),
    ("nvidia-gh200-96gb", "sm_90"): ("NVIDIA GH200 480GB", "NVIDIA GH200 120GB"),
    ("nvidia-gh200-144gb", "sm_90"): ("NVIDIA GH200 144G HBM3e",),
    ("nvidia-b200", "sm_100"): ("NVIDIA B200", "NVIDIA B200 SXM"),
    ("nvidia-gb200", "sm_100"): ("NVIDIA GB200",),
    ("nvidia-b300", "sm_103"): ("NVIDIA B300", "NVIDIA B300 SXM6 AC"),
    ("nvidia-gb300", "sm_103"): ("NVIDIA GB300",),
    ("nvidia-gb10", "sm_121"): ("NVIDIA GB10",),
    ("nvidia-rtx-pro-6000-blackwell-server", "sm_120"): ("NVIDIA RTX PRO 6000 Blackwell Server Edition",),
    ("nvidia-rtx-pro-6000-blackwell", "sm_120"): ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition",),
    ("nvidia-rtx-pro-6000-blackwell-max-q", "sm_120"): ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",),
    ("nvidia-rtx-6000-ada", "sm_89"): ("NVIDIA RTX 6000 Ada Generation",),
    ("nvidia-l2", "sm_89"): ("NVIDIA L2",),
    ("nvidia-l20", "sm_89"): ("NVIDIA L20",),
    ("nvidia-l4", "sm_89"): ("NVIDIA L4",),
    ("nvidia-l40", "sm_89"): ("NVIDIA L40",),
    ("nvidia-l40s", "sm_89"): ("NVIDIA L40S",),
    ("amd-mi300x", "gfx942"): ("AMD Instinct MI300X", "AMD Instinct MI300X OAM", "MI300X"),
    ("amd-mi325x", "gfx942"): ("AMD Instinct MI325X", "AMD Instinct MI325X OAM", "MI325X"),
    ("amd-mi210", "gfx90a"): ("AMD Instinct MI210", "MI210"),
    ("amd-mi250x", "gfx90a"): ("AMD Instinct MI250X", "MI250X"),
    ("amd-mi300a", "gfx942"): ("AMD Instinct MI300A", "MI300A"),
    ("amd-mi308x", "gfx942"): ("AMD Instinct MI308X", "AMD Instinct MI308X OAM", "MI308X"),
    ("amd-mi350x", "gfx950"): ("AMD Instinct MI350X", "MI350X"),
    ("amd-mi355x", "gfx950"): ("AMD Instinct MI355X", "MI355X"),
    ("tpu-v2", "v2"): ("TPU v2",),
    ("tpu-v3", "v3"): ("TPU v3",),
    ("tpu-v4", "v4"): ("TPU v4",),
    ("tpu-v4i", "v4i"): ("TPU v4 lite",),
    ("tpu-v5e", "v5e"): ("TPU v5 lite", "TPU v5e", "TPU v5litepod", "TPU v5lite"),
    ("tpu-v5p", "v5p"): ("TPU v5", "TPU v5p"),
    ("tpu-v6e", "v6e"): ("TPU v6 lite", "TPU v6e", "TPU v6lite"),
    ("tpu-v7x", "v7x"): ("TPU7x", "TPU v7x", "TPU7", "TPU v7", "TPU 7x"),
}
_GEFORCE = {"30": "sm_86", "40": "sm_89", "50": "sm_120"}
_GEFORCE_MODELS = ("50", "60", "70", "80", "90")
_GEFORCE_SUFFIXES = (
    "",
    " Ti",
    " SUPER",
    " Ti SUPER",
    " Laptop GPU",
    " Ti Laptop GPU",
    " D",
    " D v2",
)


def _key(raw: str) -> str:
    return " ".join(re.split(r"[\s_-]+", raw.strip().lower()))


@functools.cache
def _table() -> dict[str, Alias]:
    table: dict[str, Alias] = {}
    for (variant, family), names in _RAW.items():
        # The canonical variant reads back as itself, so a stored name is also a valid question.
        for name in (*names, variant):
            known = table.setdefault(_key(name), Alias(variant, family))
            if known.variant != variant:
                raise AssertionError(f"alias {name!r} means both {known.variant} and {variant}")
    for series, family in _GEFORCE.items():
        for model in _GEFORCE_MODELS:
            for suffix in _GEFORCE_SUFFIXES:
                name = f"NVIDIA GeForce RTX {series}{model}{suffix}"
                variant = _slug(name.removeprefix("NVIDIA GeForce ").removesuffix(" GPU"))
                alias = Alias(f"nvidia-{variant}", family)
                table[_key(name)] = table[_key(alias.variant)] = alias
    return table


def _slug(raw: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", raw.lower()).strip("-")


def alias(raw: str) -> Alias | None:
    """The meaning of a raw device name; None for a name that the table does not know.

    A MIG name (``"NVIDIA H100 80GB HBM3 MIG 1g.10gb"``) is its parent's variant with the slice as its partition.
    """
    slice_ = _MIG.search(raw)
    # The canonical spelling of a slice is "nvidia-h200/mig-1g.18gb".
    name = raw[: slice_.start()].rstrip("/ ") if slice_ else raw
    found = _table().get(_key(name))
    if found is None or slice_ is None:
        return found
    return Alias(found.variant, found.family, "mig-" + slice_.group(1).lower())


def variant_of(raw: str, vendor: str) -> Alias:
    """Like ``alias``, but an unknown name becomes a variant of its own: ``"nvidia-"`` and its slug."""
    found = alias(raw)
    if found is not None:
        return found
    slice_ = _MIG.search(raw)
    slug = _slug(raw[: slice_.start()] if slice_ else raw)
    slug = slug if slug.startswith(vendor + "-") else f"{vendor}-{slug}"
    return Alias(slug, "", "mig-" + slice_.group(1).lower() if slice_ else "")


def raw_name(variant: str) -> str | None:
    """The name that JAX gives a device of this variant (``device_kind``); None for one that the table does not know."""
    return next((names[0] for (known, _), names in _RAW.items() if known == variant), None)


def variants() -> dict[str, str]:
    """Every known variant and its family."""
    return {a.variant: a.family for a in _table().values()}
