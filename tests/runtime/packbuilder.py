"""Builds packs for the tests, independently of the package's own writer: the format as its page says it."""

import dataclasses
import hashlib
import json
import zipfile
from pathlib import Path
from typing import Any

from attn_tune.schema import Device, Environment, Field, FieldKind, digest_text

OP = "toy"
FIELDS = (
    Field(name="b", kind=FieldKind.SCALABLE, is_int=True),
    Field(name="t", kind=FieldKind.SCALABLE, is_int=True),
    Field(name="h", kind=FieldKind.CATEGORICAL, is_int=True),
    Field(name="dtype", kind=FieldKind.CATEGORICAL, is_int=False),
    Field(name="left", kind=FieldKind.SCALABLE, is_int=True, default=None),
    Field(name="pages", kind=FieldKind.RESOURCE, is_int=True, default=0),
)
H200 = Device(
    platform="cuda",
    family="sm_90",
    variant="nvidia-h200",
    units=132,
    shared_bytes=232448,
    power_watts=700,
)
ENVIRONMENT = Environment(jax="1", jaxlib="1", triton="1", compiler="c 1", source_hash="b2:aa")


def sig(t: int, b: int = 1, h: int = 64, **more: Any) -> str:
    """A signature's text of the toy op."""
    values = {"b": b, "t": t, "h": h, "dtype": "bfloat16", **more}
    words = [f"{f.name}={values[f.name]}" for f in FIELDS if f.name in values]
    return " ".join([f"{OP}/v1", *words])


def row(signature: str, block: Any = 64, **more: Any) -> dict[str, Any]:
    """One row of a shard; ``device`` and ``env`` may be the objects themselves."""
    return {
        "device": H200,
        "signature": signature,
        "kernel": "alpha",
        "rank": 0,
        "config": {"block": block},
        "state": "winner",
        "env": ENVIRONMENT,
        "median_ns": 1000,
        "heuristic_ns": 1500,
        "gain_ppm": 500000,
        "regret_ppm": 4000,
        "error_ppm": 200000,
        "samples": 30,
        **more,
    }


def lines_digest(rows: list[tuple[str, dict[str, Any]]]) -> str:
    """The decision digest, spelled out."""
    return digest_text(
        "\n".join(
            sorted(
                json.dumps(
                    [r["device"], r["signature"], d, r["kernel"], r["rank"], r["config"]],
                    sort_keys=True,
                    separators=(",", ":"),
                )
                for d, r in rows
            )
        )
    )


def pack_files(
    rows: dict[str, list[dict[str, Any]]] | list[dict[str, Any]],
    name: str = "lab",
    contract: int = 1,
    **manifest: Any,
) -> dict[str, bytes]:
    """The files of a pack; ``rows`` by direction, or those of the forward."""
    by_direction = {"fwd": rows} if isinstance(rows, list) else rows
    devices: dict[str, Any] = {}
    environments: dict[str, Any] = {}
    files: dict[str, bytes] = {}
    lines: dict[str, list[str]] = {}
    flat = []
    for direction, items in by_direction.items():
        for item in items:
            device, env = item["device"], item["env"]
            devices[device.digest] = device.identity
            environments[env.digest] = dataclasses.asdict(env)
            plain = {**item, "device": device.digest, "env": env.digest}
            flat.append((direction, plain))
            line = json.dumps(plain, sort_keys=True, separators=(",", ":"))
            lines.setdefault(f"shards/{device.family}/{OP}.{direction}.json", []).append(line)
    shards = []
    for path, found in lines.items():
        files[path] = ("[\n" + ",\n".join(found) + "\n]\n").encode()
        shards.append({"path": path, "rows": len(found), "sha256": _sha(files[path])})
    kernels = sorted({f"{OP}/{r['kernel']}" for _, r in flat})
    data = {
        "format": 1,
        "min_reader": 1,
        "name": name,
        "version": "2026.1",
        "tool": "attn-tune test",
        "devices": devices,
        "environments": environments,
        "kernels": [{"kernel": k, "contract": contract} for k in kernels],
        "shards": shards,
        "decision_digest": lines_digest(flat),
        "rows": len(flat),
        **manifest,
    }
    files["manifest.json"] = (json.dumps(data, sort_keys=True, indent=1) + "\n").encode()
    return resummed(files)


def with_list(files: dict[str, bytes], listed: list[dict[str, Any]], **said: Any) -> dict[str, bytes]:
    """``files`` with a quarantine list, as its page says; ``said`` is what the manifest says of it instead."""
    data = json.dumps({"format": 1, "never": listed}).encode()
    manifest = json.loads(files["manifest.json"]) | {"format": 2, "min_reader": 2}
    manifest["quarantine"] = {
        "entries": len(listed),
        "sha256": hashlib.sha256(data).hexdigest(),
    } | said
    return resummed({**files, "quarantine.json": data, "manifest.json": json.dumps(manifest).encode()})


def resummed(files: dict[str, bytes]) -> dict[str, bytes]:
    """The same files with sums that fit: what someone who edits a pack by hand can do."""
    plain = {name: data for name, data in files.items() if name != "SHA256SUMS"}
    sums = "".join(f"{_sha(data)}  {name}\n" for name, data in sorted(plain.items()))
    return {**plain, "SHA256SUMS": sums.encode()}


def write_folder(root: Path, files: dict[str, bytes]) -> Path:
    """The pack as a folder."""
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root


def write_zip(path: Path, files: dict[str, bytes]) -> Path:
    """The pack as one file."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in sorted(files.items()):
            archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
    return path


def _sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
