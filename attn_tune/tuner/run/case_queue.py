"""The cases of a sweep, each handed to the next executor that is free."""

import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from attn_tune.tuner.plan.plan import CasePlan

# A case that has lost two devices may well have been the reason.
_MOST_RETURNS = 1
_POLL_S = 0.2


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """One case that an executor has taken. ``returns`` is how often it was given back before.

    Attributes:
      plan: the plan of the case.
    """

    plan: CasePlan
    returns: int = 0

    @property
    def may_return(self) -> bool:
        """Whether it may be given back once more."""
        return self.returns < _MOST_RETURNS


class CaseQueue:
    """A queue that ends when no case waits and none is taken, for a lost device gives its case back.

    ``should_stop`` is asked now and then whether waiting is still worth it.
    """

    def __init__(self, cases: Iterable[CasePlan], should_stop: Callable[[], bool]):
        self._waiting = deque(Turn(plan=plan) for plan in cases)
        self._taken = 0
        self._should_stop = should_stop
        self._changed = threading.Condition()

    @property
    def empty(self) -> bool:
        """Whether no case waits and none is taken."""
        with self._changed:
            return not self._waiting and not self._taken

    def take(self) -> Turn | None:
        """The next case, waiting for one while others may give theirs back; None at the end or on a stop."""
        with self._changed:
            while not self._should_stop():
                if self._waiting:
                    self._taken += 1
                    return self._waiting.popleft()
                if not self._taken:
                    return None
                self._changed.wait(_POLL_S)
        return None

    def peek(self) -> CasePlan | None:
        """The case that is likely taken next, None while none waits."""
        with self._changed:
            return self._waiting[0].plan if self._waiting else None

    def finish(self) -> None:
        """The caller is done with the case that it took."""
        self._put_down()

    def give_back(self, turn: Turn, rest: CasePlan) -> None:
        """The caller cannot finish ``turn``; ``rest`` is what is left of it. It is the next to be taken."""
        self._put_down(Turn(plan=rest, returns=turn.returns + 1))

    def _put_down(self, returned: Turn | None = None) -> None:
        with self._changed:
            self._taken -= 1
            if returned is not None:
                self._waiting.appendleft(returned)
            self._changed.notify_all()
