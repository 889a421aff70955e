"""Starts a job of several real JAX processes on this machine's CPU, and reads their results."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PROCESS = Path(__file__).with_name("rank_process.py")


def run_job(
    environments: list[dict[str, str]],
    *,
    delays: dict[int, float] | None = None,
    limit_s: float = 120,
    grace_s: float | None = None,
) -> tuple[list[dict[str, Any]], float]:
    """(the result of each process, seconds from the start of the first to the end of the last).

    Process ``i`` asks ``delays[i]`` seconds late. ``grace_s`` is how long each waits for the others once two differ.

    Raises:
      TimeoutError: some process was still there after ``limit_s``; all of them are ended.
      RuntimeError: some process gave no result.
    """
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    clean = {k: v for k, v in os.environ.items() if not k.startswith("ATTN_TUNE_")}
    start = time.monotonic()
    running = [
        subprocess.Popen(
            [
                sys.executable,
                PROCESS,
                *map(str, (me, len(environments), port)),
                str((delays or {}).get(me, 0)),
                *([] if grace_s is None else [str(grace_s)]),
            ],
            env={**clean, "PYTHONPATH": str(ROOT), **extra},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for me, extra in enumerate(environments)
    ]
    said = []
    try:
        for me, process in enumerate(running):
            try:
                out, err = process.communicate(timeout=max(1.0, start + limit_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise TimeoutError(f"process {me} hung") from None
            lines = [line for line in out.splitlines() if line.startswith("RESULT ")]
            if not lines:
                raise RuntimeError(f"process {me} said nothing (rc {process.returncode}): {err[-2000:]}")
            said.append({**json.loads(lines[0][7:]), "log": err})
    finally:
        for process in running:
            process.kill()
            process.wait()
    return said, time.monotonic() - start
