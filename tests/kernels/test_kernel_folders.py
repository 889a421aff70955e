"""Import contracts of pyproject.toml name every kernel folder and every op."""

import tomllib
from pathlib import Path

from attn_tune.kernels.registry import kernels
from attn_tune.ops.registry import ops

ROOT = Path(__file__).parents[2]


def contracts() -> list[dict]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]


def test_the_import_contract_names_every_kernel_folder():
    (independent,) = (c for c in contracts() if c["type"] == "independence")
    folders = {f"attn_tune.kernels.{spec.op}.{spec.name}" for spec in kernels().values() if not spec.entry_point}
    assert set(independent["modules"]) == folders


def test_code_that_ops_share_may_import_none_of_them():
    (shared,) = (c for c in contracts() if c.get("source_modules") == ["attn_tune.kernels.lang"])
    own = {op.name for op in ops().values() if (ROOT / "attn_tune" / "ops" / op.name).is_dir()}
    assert set(shared["forbidden_modules"]) == {f"attn_tune.{room}.{op}" for room in ("kernels", "ops") for op in own}
