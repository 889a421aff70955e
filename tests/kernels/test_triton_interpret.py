"""Runs the interpreter's cases in a process of their own, because Triton must be imported with TRITON_INTERPRET=1."""

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
XLA_FLAGS = "--xla_force_host_platform_device_count=2"


def test_interpreted_cases():
    pythonpath = os.pathsep.join([str(HERE), str(HERE.parents[1])])
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            str(HERE / "triton_interpreted_cases.py"),
        ],
        env={
            **os.environ,
            "TRITON_INTERPRET": "1",
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": f"{os.environ['XLA_FLAGS']} {XLA_FLAGS}",
            "PYTHONPATH": pythonpath,
        },
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-5_000:]
