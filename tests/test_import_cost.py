"""Modules that imports load: the package and its errors load nothing heavy, ops load jax, nothing loads the rest."""

import json
import subprocess
import sys

import pytest

HEAVY = ("jax", "jaxlib", "triton", "pandas", "numpy", "typer", "rich", "sqlite_utils")


def loaded_after(statement):
    code = f"import sys, json\n{statement}\nprint(json.dumps([m for m in {HEAVY!r} if m in sys.modules]))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(json.loads(result.stdout.splitlines()[-1]))


@pytest.mark.parametrize(
    "statement",
    [
        "import attn_tune",
        "from attn_tune import UsageError, use_pack, KernelSpec",
        "from attn_tune.kernels.registry import kernels; from attn_tune.ops.registry import ops; ops(); kernels()",
    ],
)
def test_an_import_loads_no_heavy_module(statement):
    assert loaded_after(statement) == set()


def test_an_op_loads_jax_and_neither_triton_nor_the_lab():
    loaded = loaded_after("from attn_tune import flash_attention, attention, MaskInfo")
    assert "jax" in loaded
    assert not loaded & {"triton", "pandas", "typer", "rich", "sqlite_utils"}
