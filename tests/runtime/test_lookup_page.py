"""The page of the lookup says what there is, and its examples run."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from attn_tune.packs.override_files import parse_overrides
from attn_tune.runtime.lookup.answer import Rung

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "lookup.md").read_text()


def test_the_lookup_page_names_every_rung():
    assert not {rung for rung in Rung if f"`{rung}`" not in PAGE}


def test_examples_of_the_lookup_page_run(tmp_path):
    code = "\n".join(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL))
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={
            **{k: v for k, v in os.environ.items() if not k.startswith("ATTN_TUNE_")},
            "PYTHONPATH": str(ROOT),
            "JAX_PLATFORMS": "cpu",
            "ATTN_TUNE_DEVICE_AS": "cpu",
        },
        capture_output=True,
        text=True,
        timeout=600,
    )
    # The override answered one question otherwise than the packs: as the page says, that cannot be frozen.
    assert "override" in done.stdout.splitlines()[-1]
    assert "several answers" in done.stderr
    (listed,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    assert all(entry.reason for entry in parse_overrides(json.loads(listed), "", "page").entries)
