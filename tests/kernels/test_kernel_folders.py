"""Kernel folders know none of the others: the import contract of pyproject.toml names each of them."""

import tomllib
from pathlib import Path

from attn_tune.kernels.registry import kernels

ROOT = Path(__file__).parents[2]


def test_the_import_contract_names_every_kernel_folder():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (independent,) = (c for c in contracts["contracts"] if c["type"] == "independence")
    folders = {f"attn_tune.kernels.{spec.op}.{spec.name}" for spec in kernels().values() if not spec.entry_point}
    assert set(independent["modules"]) == folders
