"""Compile Pallas kernels for an absent TPU, with the compiler in libtpu. Used in a process of its own.

libtpu takes its options from the environment when it is loaded and dumps its schedules into one folder. Only one
process may hold it unless a variable allows more.
"""

import functools
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from attn_tune.ops.registry import get_op
from attn_tune.schema.digest import digest_text
from attn_tune.schema.trial import Resources, Status
from attn_tune.tuner.offline.compilers.launch_cache import LaunchCache
from attn_tune.tuner.offline.compilers.launches import Launch, launches_of
from attn_tune.tuner.offline.compilers.longer_launches import longer_launches
from attn_tune.tuner.offline.compilers.protocol import Compiled
from attn_tune.tuner.offline.predict.bundles import read_schedule
from attn_tune.tuner.offline.predict.schedule import (
    KernelSchedule,
    schedule_from_dict,
    schedule_to_dict,
)
from attn_tune.tuner.protocol import ConfigRef
from attn_tune.tuner.work.compile import part_function, resources_of
from attn_tune.tuner.work.lowering_helper import abstract_inputs
from attn_tune.tuner.work.side_effects import unchanged_configuration

_FINAL, _ALLOCATIONS = "final_bundles", "pre-finalize-registers-and-allocations"
_FILE = re.compile(r"^\d+-(.+)-\d+-(final_bundles|pre-finalize-registers-and-allocations)\.txt$")
_NUMBER = re.compile(r"\.\d+$")
# What belongs to the whole program, not to a kernel.
_NOT_KERNELS = ("TLP", "<late")
# What libtpu says when a launch is too large for VMEM, for any grid.
_SCOPED = "exceeded scoped vmem limit"


def compiler_environment(folder: str, *, dumps: bool = True) -> dict[str, str]:
    """The variables of a process that compiles for TPUs and dumps into ``folder``.

    Without ``dumps`` nothing is written down, and no schedule can be read.
    """
    flags = (
        f"--xla_jf_dump_to={folder}",
        "--xla_jf_dump_llo_text=true",
        f"--xla_jf_dump_llo_pass_label_regex={_FINAL}|{_ALLOCATIONS}",
    )
    return {
        "JAX_PLATFORMS": "cpu",
        "TPU_SKIP_MDS_QUERY": "1",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        "TPU_ACCELERATOR_TYPE": "",
        "LIBTPU_INIT_ARGS": " ".join(flags) if dumps else "",
    }


def compile_for_tpu(
    ref: ConfigRef,
    topology: str,
    folder: str,
    *,
    cache: LaunchCache | None = None,
    whole: bool = False,
) -> Compiled:
    """Compile ``ref`` for the first device of ``topology`` and read the schedules that libtpu dumped.

    Each launch is compiled alone, with its operands in HBM, and once for all of the same steps (``Launch.key``); a
    longer launch takes the place of one that has two blocks along an axis. ``whole`` compiles everything around them
    too, as does a program whose launches cannot stand alone.

    Raises:
      Exception: any error of the kernel, Mosaic or libtpu.
    """
    start = time.perf_counter()
    device = target_device(topology)
    with seeming(device):
        traced = _traced(ref, device)
        launches = None if whole else launches_of(traced.jaxpr.jaxpr)
        if launches is None:
            digest, schedules = _whole(traced, folder)
        else:
            digest = digest_text(" ".join(f"{one.key} {one.grid}" for one in launches))
            others = longer_launches(launches, ref, lambda other: launches_of(_traced(other, device).jaxpr.jaxpr))
            pairs = zip(launches, others, strict=True)
            schedules = tuple(_compile_like(*pair, topology, folder, cache) for pair in pairs)
    # XLA's own casts and copies around them take what VMEM there is.
    kernels = [s for s in schedules if s.multiplies]
    return Compiled(
        status=Status.COMPILED,
        resources=Resources(
            shared_bytes=max((s.vmem_bytes for s in kernels), default=None),
            spill_bytes=max((s.spill_bytes for s in kernels), default=None),
            code_digest=digest,
        ),
        compile_ms=(time.perf_counter() - start) * 1e3,
        schedules=schedules,
    )


def _traced(ref: ConfigRef, device: Any) -> Any:
    import jax

    function = jax.jit(part_function(ref))
    with unchanged_configuration():
        return function.trace(_placed_inputs(ref, device))


def _compile_like(
    launch: Launch, other: Launch, topology: str, folder: str, cache: LaunchCache | None
) -> KernelSchedule:
    """The schedule of ``launch`` from ``other``, a longer one, where that can be compiled."""
    import jax

    try:
        return compile_launch(other, topology, folder, cache).with_steps(launch.steps)
    except jax.errors.JaxRuntimeError as error:
        # What is longer may need more of HBM or scalar memory, but needs the same VMEM.
        if other is launch or _SCOPED in str(error):
            raise
    return compile_launch(launch, topology, folder, cache)


def _whole(traced: Any, folder: str) -> tuple[str, tuple[KernelSchedule, ...]]:
    """The digest of the program, and all its schedules."""
    lowered = traced.lower(lowering_platforms=("tpu",))
    digest = resources_of([], lowered.as_text()).code_digest
    clear_dump(folder)
    lowered.compile()
    schedules = tuple(dumped_schedules(folder))
    clear_dump(folder)
    return digest, schedules


def compile_launch(launch: Launch, topology: str, folder: str, cache: LaunchCache | None = None) -> KernelSchedule:
    """The schedule of one launch alone, with the trips of its own grid.

    Raises:
      Exception: any error of Mosaic or libtpu.
      NoScopedMemoryError: a launch with the same steps ran out of VMEM.
    """
    import jax

    key = f"{topology.replace(':', '-')}-{launch.key}"
    known = cache.get(key) if cache else None
    if known is not None:
        if "error" in known:
            raise NoScopedMemoryError(known["error"])
        return schedule_from_dict(known["schedule"]).with_steps(launch.steps)
    device = target_device(topology)
    operands = [_on(aval, device) for aval in launch.avals]
    function = jax.jit(
        launch.__call__,
        in_shardings=[_row_major(aval, device) for aval in launch.avals],
        out_shardings=[_row_major(aval, device) for aval in launch.results],
    )
    clear_dump(folder)
    try:
        function.trace(*operands).lower(lowering_platforms=("tpu",)).compile()
    except jax.errors.JaxRuntimeError as error:
        # HBM is another matter: it depends on the batch.
        if cache and _SCOPED in str(error):
            cache.put(key, {"error": str(error)})
        raise
    found = list(dumped_schedules(folder))
    clear_dump(folder)
    own = max(found, key=lambda s: (s.multiplies, s.bundles))
    schedule = replace(own, name=launch.name, steps=launch.steps, is_parallel=launch.is_parallel)
    if cache:
        cache.put(key, {"schedule": schedule_to_dict(schedule)})
    return schedule


class NoScopedMemoryError(RuntimeError):
    """Raised with the error that libtpu gave for a launch with the same steps."""


def _placed_inputs(ref: ConfigRef, device: Any) -> Any:
    import jax

    inputs = abstract_inputs(get_op(ref.signature.op).inputs, ref.runs_on, ref.direction)
    return jax.tree.map(functools.partial(_on, device=device), inputs)


@functools.cache
def target_device(topology: str) -> Any:
    from jax.experimental import topologies

    return topologies.get_topology_desc(topology_name=topology, platform="tpu").devices[0]


def seeming(device: Any) -> Any:
    """Make a context in which kernels are traced for ``device``."""
    import jax
    from jax.sharding import AbstractDevice, AbstractMesh, AxisType

    described = AbstractDevice(device_kind=device.device_kind, num_cores=1, platform="tpu")
    # Under an explicit axis JAX does not reshape references.
    mesh = AbstractMesh((1,), ("_target",), axis_types=(AxisType.Auto,), abstract_device=described)
    return jax.sharding.use_abstract_mesh(mesh)


def _on(leaf: Any, device: Any) -> Any:
    import jax
    from jax.sharding import SingleDeviceSharding

    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=SingleDeviceSharding(device))


def _row_major(aval: Any, device: Any) -> Any:
    """The layout that Mosaic takes. Of another one XLA makes a copy in VMEM, from which nothing can be copied."""
    from jax.experimental.layout import Format, Layout
    from jax.sharding import SingleDeviceSharding

    return Format(Layout(tuple(range(aval.ndim))), SingleDeviceSharding(device))


def dumped_schedules(folder: str) -> Iterator[KernelSchedule]:
    """Read one schedule a kernel, in the order that they were compiled."""
    found: dict[str, dict[str, Path]] = {}
    for path in sorted(Path(folder).iterdir()):
        match = _FILE.match(path.name)
        if match and not match[1].startswith(_NOT_KERNELS) and "schedule-analysis" not in path.name:
            found.setdefault(match[1], {})[match[2]] = path
    for name, files in found.items():
        if _FINAL not in files:
            continue
        with files[_FINAL].open(encoding="utf-8", errors="replace") as bundles:
            if (allocations := files.get(_ALLOCATIONS)) is None:
                yield read_schedule(_NUMBER.sub("", name), bundles)
                continue
            with allocations.open(encoding="utf-8", errors="replace") as listed:
                yield read_schedule(_NUMBER.sub("", name), bundles, listed)


def clear_dump(folder: str) -> None:
    for path in Path(folder).iterdir():
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
