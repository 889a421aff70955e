"""Packs as wheels: the same bytes each time, installed by pip, found and used by a lookup of that Python."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from attn_tune.packs.archive import read_files
from attn_tune.packs.rows import Row
from attn_tune.packs.wheel import export_wheel
from attn_tune.packs.writer import files_of_rows
from attn_tune.schema import StorageError, UsageError
from tests.runtime.packbuilder import ENVIRONMENT, H200, write_folder

ROOT = Path(__file__).resolve().parents[2]
SIGNATURE = "flash_attention/v1 b=1 t=64 s=64 n=1 k=1 h=64 v=64 dtype=float32"
LOOKUP = f"""
from attn_tune.runtime.active import settings
from attn_tune.runtime.active.sources import SourceKind
from attn_tune.schema import Device
found = settings.current_settings()
[source] = [s for s in found.sources if "attn_tune_pack_" in s.path]
assert source.kind is SourceKind.WHEEL, source.kind
from attn_tune.runtime.lookup.dispatch import lookup
answer = lookup("flash_attention", {SIGNATURE!r}, device=Device(**{H200.identity!r}), kernel="xla")
print(answer.source, answer.rung, answer.source_kind)
from attn_tune.runtime.lookup.dispatch import explain
print(explain("flash_attention", {SIGNATURE!r}, device=Device(**{H200.identity!r}), kernel="xla"))
import sys
assert not any(name.startswith("attn_tune_pack_") for name in sys.modules), "a pack is data"
"""


def pack(path, version="2026.1"):
    """A pack with one row that the kernel that runs everywhere can answer."""
    one = Row(
        op="flash_attention",
        direction="fwd",
        device=H200.digest,
        signature=SIGNATURE,
        kernel="xla",
        rank=0,
        config={"chunk_q": 64, "chunk_k": 64},
        state="only",
        env=ENVIRONMENT.digest,
    )
    files = files_of_rows(
        [one],
        name="My.Pack-2",
        version=version,
        devices={H200.digest: H200},
        environments={ENVIRONMENT.digest: ENVIRONMENT},
        contracts={"flash_attention/xla": 1},
    )
    return write_folder(path, files)


def test_wheel_holds_the_pack_and_is_the_same_bytes_each_time(tmp_path):
    source = pack(tmp_path / "pack")
    wheel = export_wheel(source, tmp_path / "a")
    again = export_wheel(source, tmp_path / "b")
    assert wheel.name == "attn_tune_pack_my_pack_2-2026.1-py3-none-any.whl"
    assert wheel.read_bytes() == again.read_bytes()
    with zipfile.ZipFile(wheel) as archive:
        inside = {n: archive.read(n) for n in archive.namelist()}
    held = {n.partition("/")[2]: d for n, d in inside.items() if n.startswith("attn_tune_pack_my_pack_2/")}
    assert held == read_files(source)
    assert not [name for name in inside if name.endswith(".py")]
    with pytest.raises(StorageError, match="exists"):
        export_wheel(source, tmp_path / "a")


def test_wheel_of_a_version_that_pip_cannot_read_is_refused(tmp_path):
    with pytest.raises(UsageError, match="version"):
        export_wheel(pack(tmp_path / "pack", version="h200-rev3"), tmp_path)


def test_installed_wheel_is_found_and_used_by_a_lookup(tmp_path):
    wheel = export_wheel(pack(tmp_path / "pack"), tmp_path)
    site = tmp_path / "site"
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-index",
        "--no-deps",
        "--no-compile",
    ]
    done = subprocess.run([*pip, "--target", site, wheel], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "PYTHONPATH": os.pathsep.join([str(site), str(ROOT)]),
        "JAX_PLATFORMS": "cpu",
    }
    done = subprocess.run(
        [sys.executable, "-c", LOOKUP],
        env=environment,
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    said, explained = done.stdout.split("\n", 1)
    assert said.split() == ["My.Pack-2", "2026.1", "exact", "wheel"]
    assert "pack of attn-tune-pack-my-pack-2: My.Pack-2 2026.1, device exact" in explained
    assert "shipped pack My" not in explained
