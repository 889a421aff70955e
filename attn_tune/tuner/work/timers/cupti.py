"""Kernel durations from CUPTI, through the extension that JAX's own Mosaic GPU profiler uses.

``jax.experimental.mosaic.gpu.profiler.Cupti`` traces one function; here several functions share one session, so its
two primitives are called: ``_cupti_init()`` and ``_cupti_get_timings(finalize) -> [(kernel name, ms)]`` (the same in
JAX 0.11 and 0.12).
"""

from collections.abc import Callable

from attn_tune.tuner.work.timers.records import Record
from attn_tune.tuner.work.timers.timer import TimerError
from attn_tune.tuner.work.timers.traced import TracedTimer


def cupti_timer() -> TracedTimer:
    """A timer over CUPTI.

    Raises:
      TimerError: this JAX has no CUPTI binding.
    """
    extension = _extension()

    def trace(work: Callable[[], None]) -> list[Record]:
        extension._cupti_init()
        try:
            work()
        finally:
            # Not finalised: detaching costs far more than a session, and the next one follows at once.
            timings = extension._cupti_get_timings(False)
        return to_records(timings)

    return TracedTimer("cupti", trace)


def to_records(timings: list[tuple[str, float]]) -> list[Record]:
    """CUPTI's ``(name, milliseconds)`` pairs as records."""
    return [Record(name, round(ms * 1e6)) for name, ms in timings]


def _extension():
    try:
        from jax._src.lib import mosaic_gpu
    except ImportError as error:
        raise TimerError(f"this JAX has no Mosaic GPU extension to reach CUPTI: {error}") from error
    extension = mosaic_gpu._mosaic_gpu_ext  # pyright: ignore[reportPrivateImportUsage]
    for name in ("_cupti_init", "_cupti_get_timings"):
        if not hasattr(extension, name):
            raise TimerError(f"this JAX's Mosaic GPU extension has no {name}")
    return extension
