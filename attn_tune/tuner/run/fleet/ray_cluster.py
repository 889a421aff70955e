"""A Ray cluster as a fleet: which devices it has, and an executor for each."""

import contextlib
import importlib.util
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from attn_tune.schema.errors import NoDataError, UsageError
from attn_tune.tuner.protocol import Limits
from attn_tune.tuner.run.fleet.fleet import Fleet
from attn_tune.tuner.run.fleet.ray_executor import PLACE_S, RayExecutor

# What a worker process on this host would inherit, and a node's would not.
_INHERITED = ("JAX_PLATFORMS", "XLA_FLAGS", "LIBTPU_INIT_ARGS")


@dataclass(frozen=True, kw_only=True, slots=True)
class Slots:
    """``count`` devices; ``options`` are those of an actor that gets one of them."""

    count: int
    options: Mapping[str, Any]


@contextlib.contextmanager
def ray_fleet(
    *,
    accelerator: str = "",
    most: int | None = None,
    limits: Limits | None = None,
    interrupt: Callable[[], bool] = lambda: False,
    place_s: float = PLACE_S,
) -> Iterator[Fleet]:
    """A fleet on the running cluster, of ``most`` devices at most.

    Args:
      accelerator: only devices of this type, by Ray's name (``"H200"``).
      place_s: seconds that an actor may take to find a place, at first or when its node is lost.

    Raises:
      UsageError: Ray is not installed, or no node has such a device.
      NoDataError: no cluster is running.
    """
    with _connected() as ray:
        slots = find_slots(ray.nodes(), accelerator)
        environment = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        executors = [
            RayExecutor(
                options=slots.options,
                limits=limits,
                environment=environment,
                interrupt=interrupt,
                place_s=place_s,
            )
            for _ in range(slots.count if most is None else max(1, min(most, slots.count)))
        ]
        with Fleet(executors) as fleet:
            yield fleet


def find_slots(nodes: list[dict[str, Any]], accelerator: str = "") -> Slots:
    """The devices of ``ray.nodes()``: GPUs if there are any, else TPU chips, else one processor a node.

    Raises:
      UsageError: there is no device (of that type).
    """
    label = f"accelerator_type:{accelerator}"
    found = [node["Resources"] for node in nodes if node["Alive"]]
    found = [r for r in found if not accelerator or label in r]
    options = {"accelerator_type": accelerator} if accelerator else {}
    for name, wanted in (("GPU", {"num_gpus": 1}), ("TPU", {"resources": {"TPU": 1}})):
        if count := sum(int(r.get(name, 0)) for r in found):
            return Slots(count=count, options={"num_cpus": 1, **wanted, **options})
    processors = [r["CPU"] for r in found if r.get("CPU")]
    if accelerator or not processors:
        what = f"an accelerator of type {accelerator!r}" if accelerator else "a GPU, TPU or CPU"
        raise UsageError(f"no node of the Ray cluster has {what}; see 'ray status'")
    # A processor is one device: a measurement must be alone there.
    whole = {"num_cpus": min(processors), "scheduling_strategy": "SPREAD"}
    return Slots(count=len(processors), options=whole)


@contextlib.contextmanager
def _connected() -> Iterator[Any]:
    if importlib.util.find_spec("ray") is None:
        raise UsageError("ray is not installed; install attn-tune with its extra 'ray'")
    import ray

    if ray.is_initialized():
        yield ray
        return
    try:
        ray.init(address="auto", log_to_driver=False, logging_level=logging.ERROR)
    except ConnectionError as error:
        raise NoDataError(
            "no Ray cluster is running here; start one with 'ray start --head', or name one with RAY_ADDRESS"
        ) from error
    try:
        yield ray
    finally:
        ray.shutdown()
