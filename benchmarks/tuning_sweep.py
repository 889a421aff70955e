"""attn-tune as one of the tuners that ``tuning_speed.py`` compares: its own command, listened to."""

import collections
import contextlib
import io
import json
import math
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tuning_record import Record, Request, Step, Task


def tune(request: Request) -> Record:
    """``attn-tune sweep``, in this process, on a fresh database.

    The clock starts when its worker process has found the device. Counted are the configs that a worker ran, those
    refused before compiling and the finals left out.
    """
    from attn_tune.cli import main
    from attn_tune.tuner.run import executor as executors

    phases: collections.Counter[str] = collections.Counter()
    ready: list[float] = []

    class Listening(executors.IsolatedExecutor):
        """The executor of the command, overheard: when it is ready, and what each config cost."""

        def identify(self) -> Any:
            identity = super().identify()
            ready.append(time.monotonic())
            return identity

        def run(self, request: Any) -> Any:
            outcome = super().run(request)
            phases.update(getattr(outcome, "phases_ms", {}))
            return outcome

    executors.IsolatedExecutor = Listening
    database = request.record.with_name("lab.db")
    sys.argv = ["attn-tune", *sweep_arguments(request, database)]
    said = io.StringIO()
    started = time.monotonic()
    with contextlib.redirect_stdout(said):
        code = _exit_code(main)
    ended = time.monotonic()
    if not said.getvalue().strip():
        raise RuntimeError(f"attn-tune sweep ended with status {code} and said nothing")
    answer = json.loads(said.getvalue())
    step = replace(
        sweep_step(request.direction, stored_trials(database, answer["run"]), phases),
        start_s=ready[0] if ready else started,
        end_s=ended,
    )
    ending = answer["ending"]
    failed = "" if ending == "finished" else f"the sweep ended early: {ending}"
    return Record(steps=(step,), device=answer["device"], failed=failed)


def sweep_arguments(request: Request, database: Path) -> list[str]:
    """The command line that is measured, program name left out."""
    limit = [] if request.max_trials is None else ["--max-trials", str(request.max_trials)]
    return [
        *("sweep", "--grid", signature_text(request.task), "--kernel", request.kernel),
        *("--direction", request.direction, "--strategy", "exhaustive", *limit),
        *("--db", str(database), "--json"),
    ]


def signature_text(task: Task) -> str:
    """The task as attn-tune writes it."""
    from attn_tune.ops.flash_attention.problem import Problem

    problem = Problem(
        batch=task.batch,
        q_len=task.length,
        kv_len=task.length,
        num_q_heads=task.heads,
        num_kv_heads=task.kv_heads,
        head_dim=task.head_dim,
        v_head_dim=task.head_dim,
        dtype=task.dtype,
        causal=task.causal,
        scale=1 / math.sqrt(task.head_dim),
    )
    return problem.signature.text


def stored_trials(database: Path, run_id: int) -> list[dict[str, Any]]:
    """The trials of one run, as plain rows."""
    from attn_tune.db import Database

    columns = ["status", "stage", "part", "config", "median_us", "compile_ms"]
    with Database.open(database, create=False, read_only=True) as opened:
        frame = opened.frame("trials", run=run_id)[columns]
    rows = frame.astype(object).where(frame.notna(), None).itertuples(index=False)
    return [dict(zip(columns, row, strict=True)) for row in rows]


def sweep_step(direction: str, trials: list[dict[str, Any]], phases_ms: Mapping[str, float]) -> Step:
    """The sums over ``trials``; the times of the step are left at zero."""
    tried = [t for t in trials if t["stage"] == "search" and t["status"] != "unsupported"]
    whole = [t["median_us"] for t in trials if not t["part"] and t["median_us"]]
    compiled = [t["compile_ms"] for t in tried if t["compile_ms"] is not None]
    parts = collections.Counter(t["part"] or "whole" for t in tried)
    return Step(
        direction=direction,
        start_s=0.0,
        end_s=0.0,
        statuses=dict(collections.Counter(t["status"] for t in tried)),
        best_us=min(whole) if whole else None,
        phases_s={name: ms / 1e3 for name, ms in phases_ms.items()},
        detail={
            "configs_by_part": dict(parts),
            "refused_before_compiling": sum(t["status"] == "unsupported" for t in trials),
            "finals": len({t["config"] for t in trials if t["stage"] == "final"}),
            "worker_compile_s": sum(compiled) / 1e3,
        },
    )


def _exit_code(main: Callable[[], None]) -> int:
    try:
        main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(bool(end.code))
    return 0
