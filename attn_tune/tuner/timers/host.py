"""The host clock: launch, wait, look at the watch. Right on a CPU; on a GPU it includes the launch itself."""

import time
from collections.abc import Sequence

from attn_tune.tuner.timers.timer import Flush, Launch


class HostTimer:
    """Wall time of a launch and its wait, averaged over the launch's repeats."""

    name = "host"
    wants_repeats = True

    def sample(self, launches: Sequence[Launch], flush: Flush | None) -> list[int]:
        """See ``Timer.sample``."""
        import jax

        durations = []
        for launch in launches:
            if flush is not None:
                jax.block_until_ready(flush())
            start = time.perf_counter_ns()
            outputs = None
            for _ in range(launch.repeats):
                outputs = launch.run()
            jax.block_until_ready(outputs)
            elapsed = time.perf_counter_ns() - start
            durations.append(max(1, round(elapsed / launch.repeats)))
        return durations
