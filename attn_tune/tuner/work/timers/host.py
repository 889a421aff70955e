"""`HostTimer`: wall time of a launch and its wait. Right on a CPU; on a GPU it includes the launch itself."""

import time
from collections.abc import Sequence

from attn_tune.tuner.work.timers.timer import Flush, Launch


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
            elapsed, left = 0, launch.repeats
            while left:
                count = min(left, launch.most_held)
                runs = [launch.ready() for _ in range(count)]
                start = time.perf_counter_ns()
                outputs = [run() for run in runs]
                jax.block_until_ready(outputs[-1])
                elapsed += time.perf_counter_ns() - start
                launch.check(outputs)
                left -= count
            durations.append(max(1, round(elapsed / launch.repeats)))
        return durations
