"""An executor for fleets: it answers from a table, and hangs or is lost on cue. And what its events amount to."""

import threading
import time
from collections import Counter, defaultdict

from attn_tune.schema.trial import Stage, Trial
from attn_tune.tuner.run.executor import ExecutorError, Interrupted
from tests.patience import PATIENCE_S
from tests.tuner.replay import ReplayExecutor

TIMES = {("k", "", 4): 100, ("k", "", 8): 70, ("k", "", 16): 50}
CONFIGS = 3


class FleetMember(ReplayExecutor):
    """Waits at ``gate`` before each config. Is lost for good before its config number ``lost_at``.

    With ``hangs`` a config only ends by interruption, which must come. ``threads`` are those that it was called from.
    """

    def __init__(self, times=TIMES, *, lost_at=None, hangs=False, gate=None, **kwargs):
        super().__init__(times, **kwargs)
        self.lost_at, self.hangs, self.gate = lost_at, hangs, gate
        self.identity = None
        self.threads, self.closed, self.interrupt = set(), 0, lambda: False

    def identify(self):
        self.threads.add(threading.current_thread())
        if self.lost_at == -1:
            raise ExecutorError("the worker process does not start: no driver")
        return self.identity

    def run(self, request):
        self.threads.add(threading.current_thread())
        if self.gate is not None:
            assert self.gate.wait(PATIENCE_S)
        deadline = time.monotonic() + PATIENCE_S
        while self.hangs:
            assert time.monotonic() < deadline, "the sweep was not interrupted"
            time.sleep(0.01)
            if self.interrupt():
                raise Interrupted("interrupted while a config was running")
        if self.lost_at is not None and len(self.runs) >= self.lost_at:
            raise ExecutorError("the worker process does not start: the device fell off the bus")
        return super().run(request)

    def finals(self, request):
        if self.lost_at is not None and len(self.runs) >= self.lost_at:
            raise ExecutorError("the worker process does not start: the device fell off the bus")
        return super().finals(request)

    def close(self):
        self.threads.add(threading.current_thread())
        self.closed += 1


def trials_of(events) -> list[Trial]:
    return [event for event in events if isinstance(event, Trial)]


def by_case(events) -> dict[str, list]:
    """The events of each case, in the order in which they came."""
    found = defaultdict(list)
    for event in events:
        if isinstance(event, Trial):
            found[event.signature.text].append((event.config["size"], event.stage))
        elif event.case is not None:
            found[event.case.signature.text].append(event.kind)
    return dict(found)


def searched(events) -> Counter:
    return Counter((t.signature.text, t.part, t.config_digest) for t in trials_of(events) if t.stage is Stage.SEARCH)
