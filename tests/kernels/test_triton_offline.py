"""Runs the offline cases in processes of their own: without Triton's interpreter, with an empty compile cache."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CASES = [str(HERE / name) for name in ("triton_compile_cases.py", "triton_lowering_cases.py")]
BUILDS = ["matmul_kernel", "softmax_kernel"]

pytestmark = pytest.mark.slow


def run_cases(cache: Path, *selection: str) -> subprocess.CompletedProcess:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TRITON_")}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *CASES, *selection],
        env={
            **environment,
            "JAX_PLATFORMS": "cpu",
            "TRITON_CACHE_DIR": str(cache),
            "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parents[1])]),
        },
        capture_output=True,
        text=True,
        timeout=600,
    )


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("triton_cache")


def test_offline_cases(cache):
    done = run_cases(cache)
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-5_000:]


def test_a_second_process_compiles_nothing(tmp_path):
    outcomes = []
    for _ in range(2):
        done = run_cases(tmp_path, "-s", "-k", "test_a_process_finds_what_another_compiled")
        assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-5_000:]
        (line,) = re.findall(r"BUILDS (.*)", done.stdout)
        outcomes.append(line.split())
    assert outcomes == [
        [f"{name}:compiled" for name in BUILDS],
        [f"{name}:found" for name in BUILDS],
    ]
