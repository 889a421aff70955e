"""Whether a device can still be trusted: asked of a fresh process, after a worker on it was lost.

``python -m attn_tune.tuner.run.health FD PARENT`` is that process.
"""

import logging
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from attn_tune.tuner.run.process import WorkerDied, WorkerLate, WorkerProcess
from attn_tune.tuner.work.child_process import attach

logger = logging.getLogger(__name__)

DEADLINE_S = 60.0
# Seconds to wait before each try: a driver that resets a device takes its time, a minute at most.
DELAYS_S = (0.0, 4.0, 8.0, 16.0, 32.0)
# A kill is harmless there: the system takes back all that a process of the host held.
HOST_PLATFORMS = ("cpu",)

_SIZE = 512
_NAP_S = 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class Health:
    """The result of a probe.

    Attributes:
      healthy: whether the device computes.
      device: its name.
      reason: what is wrong, empty if it is healthy.
      seconds: the time that the probe took.
    """

    healthy: bool
    device: str = ""
    reason: str = ""
    seconds: float = 0.0

    def __str__(self) -> str:
        return f"{self.device or 'the device'}: {'healthy' if self.healthy else self.reason}"


class UnhealthyError(Exception):
    """The device did not come back; the text says what the last probe saw."""


def probe(
    environment: Mapping[str, str] | None = None,
    deadline_s: float = DEADLINE_S,
    interrupt: Callable[[], bool] = lambda: False,
) -> Health:
    """Find the device in a fresh process and have it multiply matrices whose product is known.

    ``environment`` is added to that process's variables, as for a worker.

    Raises:
      InterruptedError: ``interrupt()`` turned true.
    """
    start = time.monotonic()
    process = WorkerProcess(environment, "attn_tune.tuner.run.health")
    try:
        health = process.receive(deadline_s, interrupt)
    except WorkerDied as death:
        health = Health(healthy=False, reason=str(death))
    except WorkerLate as late:
        health = Health(healthy=False, reason=f"no answer within {deadline_s:g} s{late}")
    finally:
        process.kill()
    return replace(health, seconds=time.monotonic() - start)


class HealthGate:
    """Lets the next worker onto a device: at once, or once a probe found it healthy after one was lost there.

    On a CPU nothing is probed: see ``HOST_PLATFORMS``. ``platform`` is that of the device in use, to be set once it is
    known; an unknown one is probed.
    """

    def __init__(
        self,
        environment: Mapping[str, str] | None = None,
        *,
        delays_s: Sequence[float] = DELAYS_S,
        ask: Callable[..., Health] = probe,
    ):
        self.platform = ""
        self._environment = environment
        self._delays_s = delays_s
        self._ask = ask
        self._suspect = False

    def suspect(self) -> None:
        """A worker was lost: killed, dead, or with a fault that stays."""
        self._suspect = True

    def pass_through(self, interrupt: Callable[[], bool] = lambda: False) -> None:
        """Return when the next worker may start.

        Raises:
          UnhealthyError: the device is still not right after the last try.
          InterruptedError: ``interrupt()`` turned true.
        """
        if not self._suspect:
            return
        if self.platform not in HOST_PLATFORMS:
            self._wait_until_healthy(interrupt)
        self._suspect = False

    def _wait_until_healthy(self, interrupt: Callable[[], bool]) -> None:
        health = Health(healthy=False, reason="it was not asked")
        for delay_s in self._delays_s:
            _sleep(delay_s, interrupt)
            health = self._ask(self._environment, DEADLINE_S, interrupt)
            if health.healthy:
                logger.debug("after a lost worker: %s (%.1f s)", health, health.seconds)
                return
            logger.warning("the device is not well after a lost worker: %s", health)
        raise UnhealthyError(
            f"the device did not come back after a worker was lost, in {len(self._delays_s)} tries over "
            f"{sum(self._delays_s):.0f} s: {health}; what was measured is stored: see to the device, "
            f"then run the same command again"
        )


def examine() -> Health:
    """The health of this process's default device, found by using it.

    The products are whole numbers that every precision holds exactly, so that a single wrong bit shows.

    Raises:
      Exception: any error of the device's software.
    """
    import jax
    import jax.numpy as jnp
    import numpy as np

    from attn_tune.devices.identity import default_jax_device

    device = default_jax_device()
    rows = np.arange(_SIZE, dtype=np.int64)
    left = (rows[:, None] * 3 + rows[None, :] * 5) % 4
    right = (rows[:, None] * 7 + rows[None, :] * 2) % 4
    with jax.default_device(device):
        product = jnp.matmul(jnp.asarray(left, jnp.float32), jnp.asarray(right, jnp.float32))
        wrong = int(np.sum(np.asarray(product) != left @ right))
    reason = f"{wrong} of {_SIZE * _SIZE} numbers of a product are wrong" if wrong else ""
    return Health(
        healthy=not wrong,
        device=f"{device.platform} {device.device_kind}",
        reason=reason,
    )


def _sleep(seconds: float, interrupt: Callable[[], bool]) -> None:
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        if interrupt():
            raise InterruptedError
        time.sleep(min(left, _NAP_S))


def main(fd: int, parent: int) -> None:
    """Examine the device and say so to the process ``parent``."""
    connection = attach(fd, parent)
    try:
        health = examine()
    except Exception as error:  # That is what it is asked about.
        health = Health(healthy=False, reason=f"{type(error).__name__}: {error}"[:1000])
    connection.send(health)


if __name__ == "__main__":
    # Under this name a class of its own would be pickled, which the parent does not know.
    from attn_tune.tuner.run import health as module

    module.main(int(sys.argv[1]), int(sys.argv[2]))
