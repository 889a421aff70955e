"""Trials of a lab database as results in T4, the exchange format of Kernel Tuner and others for autotuning results.

The schemas are version 1.0.0 of https://github.com/odgaard/TuningSchema (branch T4), as Kernel Tuner ships them.
"""

import datetime
import itertools
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from attn_tune.schema.digest import digest_json
from attn_tune.schema.trial import Status, Trial

_NO_NAME = re.compile(r"[^A-Za-z0-9_-]+")
# Characters of a file's name, beside the digest and the ending.
_MOST = 150

SCHEMA_VERSION = "1.0.0"

_INVALIDITY = {
    Status.OK: "correct",
    Status.UNPROVEN: "correct",
    Status.INCORRECT: "correctness",
    Status.UNSUPPORTED: "constraints",
    Status.OUT_OF_RESOURCES: "constraints",
    Status.COMPILE_ERROR: "compile",
    Status.RUNTIME_ERROR: "runtime",
    Status.CRASHED: "runtime",
    Status.TIMED_OUT: "timeout",
}


@dataclass(frozen=True, kw_only=True)
class Results:
    """Files of results.

    Attributes:
      files: content by file name: two a search, its results and its metadata.
      searches: the number of searches.
      trials: the number of trials in the files.
      left_out: the number of the others, by reason.
    """

    files: dict[str, str]
    searches: int
    trials: int
    left_out: Counter[str]


def results(trials: Iterable[Trial]) -> Results:
    """The files of ``trials``. A search is a kernel, direction, part and problem on a device and in an environment."""
    searches: dict[tuple[Any, ...], list[Trial]] = {}
    left_out: Counter[str] = Counter()
    for trial in trials:
        if trial.status not in _INVALIDITY:
            left_out[f"{trial.status}: nothing was run"] += 1
        elif trial.status.is_refused and not trial.config:
            left_out["the kernel cannot do the problem at all: there is no config"] += 1
        else:
            key = (trial.kernel, trial.direction, trial.part, trial.signature, trial.device, trial.environment)
            searches.setdefault(key, []).append(trial)
    files: dict[str, str] = {}
    for found in searches.values():
        name = _name(found[0])
        files[f"{name}.json"] = _text(results=list(map(_result, found)))
        files[f"{name}.metadata.json"] = _text(metadata=_metadata(found[0]))
    return Results(
        files=files,
        searches=len(searches),
        trials=sum(map(len, searches.values())),
        left_out=left_out,
    )


def _text(**data: Any) -> str:
    return json.dumps({"schema_version": SCHEMA_VERSION, **data}, indent=1, sort_keys=True, allow_nan=False) + "\n"


def _name(t: Trial) -> str:
    key = digest_json([t.signature.text, t.device.identity, asdict(t.environment)]).rpartition(":")[2]
    words = ".".join(filter(None, (t.kernel, t.direction, t.part)))
    # A database may be of others: nothing in it chooses a folder.
    return f"{_NO_NAME.sub('.', words)[:_MOST].strip('.')}.{key[:12]}"


def _result(t: Trial) -> dict[str, Any]:
    times: dict[str, Any] = {}
    for name, milliseconds in (
        ("compilation_time", t.compile_ms),
        ("validation", t.prove_ms),
        ("benchmark", t.run_ms),
    ):
        if milliseconds is not None:
            times[name] = milliseconds
    if t.measurement is not None:
        times["runtimes"] = [ns / 1e6 for ns in t.measurement.samples_ns]
    started = datetime.datetime.fromtimestamp(t.started_us / 1e6, datetime.UTC)
    return {
        "timestamp": started.isoformat(),
        "configuration": dict(t.config),
        "objectives": ["time"],
        "times": times,
        "invalidity": _INVALIDITY[t.status],
        "correctness": 1 if t.status.is_measured else 0,
        "measurements": list(_measurements(t)),
    }


def _measurements(t: Trial) -> Iterator[dict[str, Any]]:
    seen: Iterable[tuple[str, Any, str]] = (
        ("time", t.measurement and t.measurement.median_ns / 1e6, "ms"),
        ("stage", str(t.stage), ""),
        ("status", str(t.status), ""),
        ("reason", t.reason or None, ""),
        ("shared_memory", t.resources.shared_bytes, "bytes"),
        ("registers", t.resources.registers, ""),
        ("spills", t.resources.spill_bytes, "bytes"),
        ("feature_problems", t.features, ""),
    )
    errors = ((f"error_{e.output}", e.ratio, "of what is allowed") for e in t.errors if e.ratio < float("inf"))
    for name, value, unit in itertools.chain(seen, errors):
        if value is not None:
            yield {"name": name, "value": value, "unit": unit}


def _metadata(t: Trial) -> dict[str, Any]:
    environment = {name: value for name, value in asdict(t.environment).items() if value}
    packages = ("attn_tune", "jax", "jaxlib", "triton")
    # The schema has no place for the problem; further properties are allowed.
    search = {"kernel": t.kernel, "direction": t.direction, "part": t.part, "signature": t.signature.text}
    return {
        "hardware": {"hardware_description": [t.device.identity]},
        "environment": {
            "device_query": {"attn-tune": t.device.identity},
            "requirements": [f"{name}=={environment[name]}" for name in packages if name in environment],
        },
        "attn_tune": {"search": search, "environment": environment},
    }
