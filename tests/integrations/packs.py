"""Packs of rows that a test spells out."""

from pathlib import Path
from typing import Any

from attn_tune.devices.identity import device_from_kind
from attn_tune.packs.override_files import parse_overrides
from attn_tune.packs.reader import Pack, pack_from_files
from attn_tune.packs.rows import Row
from attn_tune.packs.writer import files_of_rows, write_pack
from attn_tune.schema import Device, Environment

H200 = device_from_kind("nvidia-h200")
V6E = device_from_kind("tpu-v6e")
ENVIRONMENT = Environment(jax="0.12.0", jaxlib="0.12.0", source_hash="b2:aa")
LLAMA = "b=4 t=4096 s=4096 n=32 k=8 h=128 v=128 dtype=bfloat16 causal=1"

LAYOUTS = {"q_layout": "head_dim_minor", "k_layout": "head_dim_minor", "v_layout": "seq_minor"}
# A forward of splash attention.
SPLASH = {"block_q": 1024, "block_kv": 2048, "block_kv_compute": 512} | LAYOUTS


def row(kernel: str, direction: str, config: dict, fields: str = LLAMA, device: Device = H200, **more) -> Row:
    """A row of flash_attention, proven and timed unless ``more`` says otherwise."""
    return Row(
        **{
            "op": "flash_attention",
            "direction": direction,
            "device": device.digest,
            "signature": f"flash_attention/v1 {fields}",
            "kernel": kernel,
            "rank": 0,
            "config": config,
            "state": "winner",
            "env": ENVIRONMENT.digest,
            "median_ns": 1_500_000,
            "error_ppm": 200_000,
            "samples": 30,
            "features": 12,
        }
        | more
    )


def files(*rows: Row, name: str = "lab", quarantine: Any = None, gate: Any = None) -> dict[str, bytes]:
    """The files of a pack of ``rows``; ``quarantine`` is a file of overrides, parsed."""
    return files_of_rows(
        rows,
        name=name,
        version="1",
        devices={device.digest: device for device in (H200, V6E)},
        environments={ENVIRONMENT.digest: ENVIRONMENT},
        gate=gate,
        contracts={f"flash_attention/{one.kernel}": 1 for one in rows},
        quarantine=parse_overrides(quarantine, "lab", "lab").entries if quarantine else (),
    )


def pack(*rows: Row, **more) -> Pack:
    """The pack of ``rows``."""
    return pack_from_files(files(*rows, **more))


def written(path: Path, *rows: Row, **more) -> Path:
    """The pack of ``rows`` at ``path``."""
    write_pack(path, files(*rows, **more))
    return path
