"""tokamax's autotuning results: rows of packs written as one, tables of tokamax read as hints."""

import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from attn_tune.integrations.conversion import Conversion, LeftOut
from attn_tune.kernels.flash_attention._tokamax.tables import CLASSES, entry
from attn_tune.kernels.lang.libraries.tokamax import unknown_version, wrong_version
from attn_tune.kernels.registry import get_kernel
from attn_tune.kernels.source import current_digest
from attn_tune.packs.plain_files import read_limited
from attn_tune.packs.reader import Pack
from attn_tune.packs.rows import Row
from attn_tune.packs.strict_json import parse_json
from attn_tune.schema.device import Device
from attn_tune.schema.errors import IntegrityError, NoDataError, UnsupportedError, UsageError
from attn_tune.tuner.plan.hints import Hint

KERNELS = tuple(dict.fromkeys(kernel for kernel, _ in CLASSES.values()))
_MAX_BYTES = 64 * 1024 * 1024


def convert(pack: Pack, device: Device, rows: Sequence[Row]) -> Conversion:
    """``AutotuningResult`` of ``rows``, under tokamax's own keys.

    Raises:
      NoDataError: tokamax is not installed, or in another version.
      UsageError: the name that the driver has for the device is not known.
    """
    if reason := wrong_version():
        raise NoDataError(f"tokamax's keys are made by tokamax itself: {reason}")
    from tokamax._src.autotuning.api import AutotuningResult
    from tokamax._src.autotuning.autotuner import AutotuningData
    from tokamax._src.benchmarking import BenchmarkData

    from attn_tune.devices.aliases import raw_name

    kind = raw_name(device.variant)
    if kind is None or device.partition:
        raise UsageError(f"tokamax keeps configs by the driver's name of a device, and that of {device} is not known")
    entries: dict[Any, tuple[Any, Any]] = {}
    written: list[Row] = []
    left_out: list[LeftOut] = []
    taken: set[tuple[str, str, str]] = set()
    remarks: list[str] = []
    for row in rows:
        problem = (row.kernel, row.direction, row.signature)
        try:
            if row.median_ns is None:
                raise UnsupportedError("it was not timed")
            if problem in taken:
                raise UnsupportedError("the pack has another row for a device of this name")
            calls, config = _of_row(row)
        except (UnsupportedError, UsageError) as error:
            left_out.append(LeftOut(row=row, reason=str(error)))
            continue
        taken.add(problem)
        written.append(row)
        if not _is_fresh(pack, row):
            remarks.append(f"{row.signature}: it was measured with another version of tokamax or of its adapter here")
        data = AutotuningData(
            {
                config: BenchmarkData(
                    compile_time_ms=0.0,
                    lower_time_ms=0.0,
                    evaluation_times_ms=(row.median_ns / 1e6,),
                    metadata={"attn_tune_pack": pack.digest, "attn_tune_signature": row.signature},
                )
            }
        )
        entries |= {(type(call.op), call.autotuning_cache_key): (call, data) for call in calls}
    result = AutotuningResult(kind, tuple(entries.values()))
    return Conversion(
        text=result.dumps() + "\n",
        device=device,
        written=tuple(written),
        left_out=tuple(left_out),
        remarks=tuple(remarks),
    )


def _is_fresh(pack: Pack, row: Row) -> bool:
    """Whether the kernel's source and its library are those that the row was measured with."""
    stored = current_digest(pack.environments[row.env].source_hash)
    return stored == get_kernel(f"{row.op}/{row.kernel}").source_hash


def _of_row(row: Row) -> tuple[Sequence[Any], Any]:
    """The bound calls and the config of a row."""
    from attn_tune.kernels.flash_attention._tokamax.calls import bound_calls, library_config
    from attn_tune.ops.registry import get_op

    op = get_op(row.op)
    problem = op.from_signature(op.parse_signature(row.signature))
    kernel = f"{row.op}/{row.kernel}"
    return bound_calls(kernel, row.direction, problem), library_config(kernel, row.direction, dict(row.config))


def read_table(path: Path, skipped: Counter[str]) -> Iterator[Hint]:
    """The fastest config of each entry of a table, or of all tables of a folder; others are counted in ``skipped``.

    A table is the JSON of an ``AutotuningResult``, or a file of tokamax's own ``data/autotuning/DEVICE``.

    Raises:
      StorageError: it cannot be read.
      IntegrityError: it is no such table, or one of a version of tokamax that is not known.
    """
    if path.is_dir():
        files = sorted(path.glob("*.json"))
        if not files:
            raise IntegrityError(f"{path} is neither a pack nor a folder of tables: it has no JSON file")
        for file in files:
            yield from read_table(file, skipped)
        return
    data = parse_json(read_limited(path, str(path), _MAX_BYTES), str(path))
    try:
        found = list(_entries(path, data))
    except IntegrityError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise IntegrityError(f"{path} is no pack and no table of tokamax: {type(error).__name__}: {error}") from None
    for name, arguments, configs in found:
        if name not in CLASSES:
            skipped[f"no kernel here is tokamax's {name}"] += 1
            continue
        try:
            config = _fastest(configs)
            one = entry(name, arguments, config)
        except (UnsupportedError, UsageError) as error:
            skipped[str(error)] += 1
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            skipped[f"an entry of {name} is not as tokamax writes it: {type(error).__name__}: {error}"] += 1
        else:
            yield Hint(kernel=one.kernel, direction=one.direction, config=one.config, signature=one.signature)


def _entries(path: Path, data: Any) -> Iterator[tuple[str, Mapping[str, Any], Mapping[str, Any]]]:
    """``(class, arguments, configs with their times)`` of each entry."""
    if not isinstance(data, dict):
        raise TypeError("it is no object")
    if "tokamax_version" in data or "device_kind" in data:
        if reason := unknown_version(str(data["tokamax_version"])):
            raise IntegrityError(f"{path} is a table of another version: {reason}")
        for call, configs in data["data"]:
            yield call["op"]["__type"].rpartition(".")[2], dict(call["arguments"]), dict(configs)
        return
    name = path.stem.title().replace("_", "")
    for key, configs in data.items():
        yield name, dict(parse_json(key, f"a key of {path}")), dict(configs)


def _fastest(configs: Mapping[str, Any]) -> Mapping[str, Any]:
    if not configs:
        raise UnsupportedError("tokamax found no config")
    best = min(configs, key=lambda text: statistics.median(configs[text]["evaluation_times_ms"]))
    found = parse_json(best, "a config")
    if not isinstance(found, dict):
        raise TypeError(f"a config is no object: {best!r:.100}")
    return found
