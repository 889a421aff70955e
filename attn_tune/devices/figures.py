"""Published figures of devices that need not be present: what an offline target looks like to a kernel's limits.

A target built from this table matches measured rows of its variant and family; it is not byte-equal to the
device the driver describes (real clocks and bandwidths differ by board), so it never matches at the exact level
by accident.
"""

from dataclasses import dataclass

KIB, MIB = 1024, 1024 * 1024

# Opt-in shared memory of one block, per architecture (CUDA C++ programming guide, "technical specifications per
# compute capability": per-block maximum after opt-in).
SHARED_BYTES = {
    "sm_70": 96 * KIB,
    "sm_75": 64 * KIB,
    "sm_80": 163 * KIB,
    "sm_86": 99 * KIB,
    "sm_87": 163 * KIB,
    "sm_89": 99 * KIB,
    "sm_90": 227 * KIB,
    "sm_100": 227 * KIB,
    "sm_103": 227 * KIB,
    "sm_120": 99 * KIB,
    "sm_121": 99 * KIB,
    # Local data share of one compute unit (CDNA 2, 3 and 4 instruction set guides).
    "gfx90a": 64 * KIB,
    "gfx942": 64 * KIB,
    "gfx950": 160 * KIB,
}

# VMEM of one TensorCore (JAX's own hardware table, jax.experimental.pallas.tpu).
VMEM_BYTES = {
    "v2": 16 * MIB,
    "v3": 16 * MIB,
    "v4": 16 * MIB,
    "v4i": 16 * MIB,
    "v5e": 128 * MIB,
    "v5p": 64 * MIB,
    "v6e": 128 * MIB,
    "v7x": 64 * MIB,
}


@dataclass(frozen=True, slots=True)
class Figures:
    """Units, last-level cache in MiB, top clock in MHz, memory bandwidth in GB/s, board power in watts.

    Attributes:
      units: multiprocessors or cores.
      l2_mib: the last-level cache.
      clock_mhz: the top clock.
      bandwidth_gbs: the memory bandwidth.
      power_watts: the board power.
    """

    units: int
    l2_mib: int
    clock_mhz: int
    bandwidth_gbs: int
    power_watts: int


# From the vendors' data sheets; 0 where they do not say (clocks of TPUs). L2 of the AMD parts is the infinity cache.
FIGURES = {
    "nvidia-a100-sxm4-40gb": Figures(108, 40, 1410, 1555, 400),
    "nvidia-a100-sxm4-80gb": Figures(108, 40, 1410, 2039, 400),
    "nvidia-a100-pcie-40gb": Figures(108, 40, 1410, 1555, 250),
    "nvidia-a100-pcie-80gb": Figures(108, 40, 1410, 1935, 300),
    "nvidia-a10": Figures(72, 6, 1695, 600, 150),
    "nvidia-a10g": Figures(80, 6, 1710, 600, 300),
    "nvidia-h100-sxm5": Figures(132, 50, 1980, 3350, 700),
    "nvidia-h100-pcie": Figures(114, 50, 1755, 2039, 350),
    "nvidia-h100-nvl": Figures(132, 50, 1785, 3938, 400),
    "nvidia-h200": Figures(132, 60, 1980, 4814, 700),  # as the driver reports them
    "nvidia-h200-nvl": Figures(132, 50, 1785, 4800, 600),
    "nvidia-h20": Figures(78, 60, 1980, 4000, 500),
    "nvidia-gh200-96gb": Figures(132, 50, 1980, 4000, 900),
    "nvidia-gh200-144gb": Figures(132, 50, 1980, 4900, 900),
    "nvidia-b200": Figures(148, 126, 1965, 8000, 1000),
    "nvidia-gb200": Figures(152, 126, 1965, 8000, 1200),
    "nvidia-l4": Figures(58, 48, 2040, 300, 50),
    "nvidia-l40": Figures(142, 96, 2490, 864, 300),
    "nvidia-l40s": Figures(142, 96, 2520, 864, 350),
    "nvidia-rtx-3080": Figures(68, 5, 1710, 760, 300),
    "nvidia-rtx-3090": Figures(82, 6, 1695, 936, 350),
    "nvidia-rtx-4080": Figures(76, 64, 2505, 717, 300),
    "nvidia-rtx-4090": Figures(128, 72, 2520, 1008, 450),
    "nvidia-rtx-5080": Figures(84, 64, 2617, 960, 350),
    "nvidia-rtx-5090": Figures(170, 96, 2407, 1792, 600),
    "amd-mi300x": Figures(304, 256, 2100, 5300, 750),
    "amd-mi325x": Figures(304, 256, 2100, 6000, 1000),
    "tpu-v2": Figures(1, 0, 0, 358, 0),
    "tpu-v3": Figures(1, 0, 0, 412, 0),
    "tpu-v4": Figures(2, 0, 0, 1230, 0),
    "tpu-v5e": Figures(1, 0, 0, 820, 0),
    "tpu-v5p": Figures(2, 0, 0, 2460, 0),
    "tpu-v6e": Figures(1, 0, 0, 1640, 0),
    "tpu-v7x": Figures(1, 0, 0, 3700, 0),
}

# What stands for a whole architecture when only that is named.
REPRESENTATIVE = {
    "sm_80": "nvidia-a100-sxm4-80gb",
    "sm_86": "nvidia-a10",
    "sm_89": "nvidia-l40s",
    "sm_90": "nvidia-h100-sxm5",
    "sm_100": "nvidia-b200",
    "sm_120": "nvidia-rtx-5090",
    "gfx942": "amd-mi300x",
}
