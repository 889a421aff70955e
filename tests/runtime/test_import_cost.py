"""The runtime is standard library only until a device is asked for."""

import subprocess
import sys

import pytest

from attn_tune.kernels.registry import folder_kernels

HEAVY = {"jax", "jaxlib", "numpy", "pandas", "triton", "typer", "rich", "sqlite_utils", "sqlite3"}
MODULES = [
    "attn_tune.packs.reader",
    "attn_tune.runtime.active.layers",
    "attn_tune.runtime.lookup.explain",
    "attn_tune.devices.identity",
    "attn_tune.devices.environments",
    "attn_tune.runtime.lookup.dispatch",
]


def run(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_imports_are_light():
    found = run(
        "import sys\n"
        + "\n".join(f"import {module}" for module in MODULES)
        + "\nimport threading\nprint(threading.active_count())"
        + "\nprint(*sorted({m.partition('.')[0] for m in sys.modules}))"
    )
    threads, names = found.splitlines()
    assert threads == "1"
    assert not HEAVY & set(names.split())


def test_the_package_adds_little_to_jax():
    """``benchmarks/start_up.py`` has the milliseconds."""
    code = "import jax, sys; before = set(sys.modules); import attn_tune; print(len(set(sys.modules) - before))"
    assert int(run(code)) <= 8


def test_a_lookup_for_a_named_device_needs_no_heavy_module():
    code = """
import sys
from attn_tune.kernels.registry import kernels_of
from attn_tune.runtime.lookup.dispatch import explain
from attn_tune.devices.identity import device_from_kind
text = "flash_attention/v1 b=1 t=64 s=64 n=1 k=1 h=64 v=64 dtype=float32"
print(explain("flash_attention", text, device=device_from_kind("nvidia-h200")))
print("modules", *sorted({m.partition('.')[0] for m in sys.modules}))
"""
    *_, names = run(code).splitlines()
    assert not HEAVY & set(names.split())


def test_a_first_lookup_that_a_row_answers_loads_its_kernel_alone():
    code = """
import jax, jax.extend.core, sys
before = set(sys.modules)
import attn_tune
from attn_tune.devices.identity import device_from_kind
text = "flash_attention/v1 b=4 t=4096 s=4096 n=32 k=8 h=128 v=128 dtype=bfloat16 causal=1"
answer = attn_tune.lookup("flash_attention", text, device=device_from_kind("nvidia-h200"))
print(answer.rung, answer.kernel, *sorted(set(sys.modules) - before))
"""
    rung, kernel, *added = run(code).split()
    assert rung == "exact"
    parts = [name.split(".") for name in added if name.startswith("attn_tune.")]
    rooms = {"schema", "packs", "devices", "ops", "kernels", "runtime"}
    assert {names[1] for names in parts} == rooms
    found = {names[3] for names in parts if names[1:3] == ["kernels", "flash_attention"] and names[3:]}
    assert found & set(folder_kernels("flash_attention")) == {kernel}
    assert not [name for name in added if name.partition(".")[0] in HEAVY]
    assert "attn_tune.schema.trial" not in added


AUDIT = """
import sys
opened = []
sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event in ("open", "os.scandir") else None)
import attn_tune.runtime.lookup.dispatch
print("import", *[p for p in opened if "somewhere" in p])
from attn_tune.runtime.active.settings import current_settings
current_settings().digest
print("use", len([p for p in opened if "somewhere" in p]) > 0)
"""


@pytest.mark.parametrize("name", ["ATTN_TUNE_PACKS", "XDG_DATA_HOME"])
def test_packs_are_read_on_first_use_and_not_on_import(name, tmp_path, monkeypatch):
    packs = tmp_path / "somewhere" / "attn-tune" / "packs"
    packs.mkdir(parents=True)
    (packs / "x.atpack").write_bytes(b"garbage")
    monkeypatch.setenv(name, str(packs if name == "ATTN_TUNE_PACKS" else tmp_path / "somewhere"))
    assert run(AUDIT).splitlines() == ["import", "use True"]
