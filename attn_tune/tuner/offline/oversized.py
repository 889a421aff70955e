"""Configs that a target's compiler refused for memory, and the larger configs that are refused with them."""

import math

from attn_tune.schema.trial import Status
from attn_tune.tuner.offline.compilers.protocol import Compiled
from attn_tune.tuner.plan.dominance import ConfigDict, Exhausted


class Oversized(Exhausted):
    """The configs of one part that did not fit. Several threads may ask and note."""

    def size(self, config: ConfigDict) -> float:
        """A key to sort by: a config comes after those that may rule it out."""
        return math.prod(config[name] for name in self.grows if name in config)

    def note(self, config: ConfigDict, compiled: Compiled) -> None:
        """Note the answer for ``config``, where the compiler gave the amount that it lacks."""
        lack = compiled.shortage
        if compiled.status is Status.OUT_OF_RESOURCES and lack is not None:
            text = f"which is {lack.needed} of {lack.resource} where {lack.limit} is the limit"
            self.add(config, text, lack)

    def answer(self, config: ConfigDict) -> Compiled | None:
        """The answer for a config that cannot fit, naming the one that it follows from; None where nothing is known."""
        if (found := self.ruled_out(config)) is None:
            return None
        return Compiled(
            status=Status.OUT_OF_RESOURCES,
            reason=found.reason,
            shortage=found.shortage,
            pruned=True,
        )
