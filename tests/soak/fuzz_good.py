"""The good pack that ``fuzz_packs.py`` mutates."""

from collections.abc import Sequence
from typing import Any

from attn_tune.packs.override_entries import Entry
from attn_tune.packs.rows import Row
from attn_tune.packs.writer import files_of_rows, zip_bytes
from attn_tune.schema import Device, Environment

type Files = dict[str, bytes]

DEVICE = Device(platform="cuda", family="sm_90", variant="nvidia-h200", units=132, power_watts=700)
ENVIRONMENT = Environment(jax="1", jaxlib="1", triton="1", source_hash="b2:aa")
SHARDS = ("shards/sm_90/toy.fwd.json", "shards/sm_90/toy.bwd.json")
# Mostly none: that encoder is the quick one.
INDENTS = (*(None,) * 9, 1)


def good_pack(quarantine: Sequence[Entry] = ()) -> Files:
    """Three forward rows by two kernels and one backward row with parts."""

    def row(direction: str, t: int, kernel: str, rank: int, config: dict[str, Any]) -> Row:
        return Row(
            op="toy",
            direction=direction,
            device=DEVICE.digest,
            signature=f"toy/v1 b=1 t={t} dtype=bfloat16",
            kernel=kernel,
            rank=rank,
            config=config,
            state="winner",
            env=ENVIRONMENT.digest,
            median_ns=1000,
            heuristic_ns=1500,
            gain_ppm=500000,
            regret_ppm=-4,
            samples=30,
        )

    rows = [
        row("fwd", 1024, "alpha", 0, {"block_q": 64, "warps": 4}),
        row("fwd", 1024, "beta", 1, {}),
        row("fwd", 2048, "alpha", 0, {"block_q": 128, "warps": 8, "mode": "a b", "split": None}),
        row("bwd", 1024, "alpha", 0, {"dkv": {"block": 64}, "dq": {"block": 32}}),
    ]
    return files_of_rows(
        rows,
        name="good",
        version="1",
        devices={DEVICE.digest: DEVICE},
        environments={ENVIRONMENT.digest: ENVIRONMENT},
        contracts={"toy/alpha": 1, "toy/beta": 1},
        gate={"passed": True},
        quarantine=quarantine,
    )


GOOD = good_pack()
# The same with a quarantine list.
LISTED = good_pack(
    [
        Entry(never=True, reason="wrong", op="toy", kernel="beta", config={}, signature={"t": 1024}),
        Entry(never=True, reason="hangs", device="sm_90", config={"dq": {"block": 16}}, signature={}),
    ]
)
ZIP = zip_bytes(GOOD)
