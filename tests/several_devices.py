"""Programs over several virtual CPU devices, each in a process of its own: the number of devices is fixed at start."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def run_with_devices(count: int, *words: str) -> str:
    """The output of ``python WORDS`` with ``count`` devices, compiled without optimising, as programs of tests are.

    Raises:
      AssertionError: it fails.
    """
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count={count}"
    done = subprocess.run(
        [sys.executable, *words],
        env=os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT), "XLA_FLAGS": flags},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
