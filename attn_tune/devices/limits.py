"""Limits of devices: how fast one multiplies dense matrices in 16 bit, and how fast it moves memory.

A measured figure is what this project saw a card do; a published one is that of the vendor's data sheet, which no
program reaches.
"""

from dataclasses import dataclass

from attn_tune.schema.device import Device


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """The limits of one device; 0 is unknown.

    Attributes:
      matmul_tflops: dense 16-bit matrix products with float32 sums, in 1e12 operations a second.
      copy_tb_s: bytes read and written in device memory, in 1e12 a second.
      is_matmul_measured: whether ``matmul_tflops`` was measured; else it is published.
      is_copy_measured: whether ``copy_tb_s`` was measured; else it is published, or reported by the driver.
    """

    matmul_tflops: float = 0.0
    copy_tb_s: float = 0.0
    is_matmul_measured: bool = False
    is_copy_measured: bool = False


# A dense bfloat16 product of jax.numpy, and a copy in memory, on one card (benchmarks/results/h200).
_MEASURED = {"nvidia-h200": Limits(matmul_tflops=790, copy_tb_s=4.3, is_matmul_measured=True, is_copy_measured=True)}
# Dense bfloat16 peaks, without sparsity, with float32 sums: half of what a data sheet says "with sparsity". Of a TPU
# those of what JAX calls one device: a core of v7x, a chip of the others. Each source stands above what it gives,
# as other public code and notes quote it.
_MATMUL_TFLOPS = {
    # NVIDIA A100 data sheet.
    "nvidia-a100-sxm4-40gb": 312,
    "nvidia-a100-sxm4-80gb": 312,
    "nvidia-a100-pcie-40gb": 312,
    "nvidia-a100-pcie-80gb": 312,
    "nvidia-a10": 125,
    # NVIDIA H100 and H200 data sheets: 1979, 1513 and 1671 with sparsity.
    "nvidia-h100-sxm5": 989,
    "nvidia-h100-pcie": 756,
    "nvidia-h100-nvl": 835,
    "nvidia-h200-nvl": 835,
    "nvidia-gh200-96gb": 989,
    "nvidia-gh200-144gb": 989,
    # NVIDIA Blackwell data sheets: 4500 and 5000 with sparsity.
    "nvidia-b200": 2250,
    "nvidia-gb200": 2500,
    # NVIDIA L4, L40 and L40S data sheets.
    "nvidia-l4": 121,
    "nvidia-l40": 181,
    "nvidia-l40s": 362,
    # Architecture papers of NVIDIA: GA102, Ada and RTX Blackwell, bfloat16 with float32 sums.
    "nvidia-rtx-3090": 71,
    "nvidia-rtx-4090": 165,
    "nvidia-rtx-5090": 209,
    # AMD Instinct MI300X and MI325X data sheets: 1307.4.
    "amd-mi300x": 1307,
    "amd-mi325x": 1307,
    # The page of each generation in the documentation of Google Cloud TPU; v7x: 2307 a chip of two cores.
    "tpu-v4": 275,
    "tpu-v5e": 197,
    "tpu-v5p": 459,
    "tpu-v6e": 918,
    "tpu-v7x": 1153,
}


def limits_of(device: Device) -> Limits:
    """The limits of ``device``: measured ones where there are any, else published ones. A slice has none."""
    if device.partition:
        return Limits()
    published = Limits(
        matmul_tflops=_MATMUL_TFLOPS.get(device.variant, 0.0),
        copy_tb_s=device.bandwidth_gbs / 1000,
    )
    return _MEASURED.get(device.variant, published)
