"""The command line where a sweep proves a config on one feature problem: all of them take most of its time.

Only for tests of what commands print. That each kernel passes every feature problem is proven by the tests of the ops.
"""

import functools
import sys
from collections.abc import Callable


def main() -> None:
    """Run the command that the arguments of this process are."""
    from attn_tune.cli import main as command

    if "sweep" in sys.argv[1:]:
        prove_on_one()
    command()


def prove_on_one(set_attribute: Callable[..., None] = setattr) -> None:
    """Leaves of the feature problems of a config the first. ``set_attribute`` may be that of a monkeypatch."""
    from attn_tune.tuner.run import search

    every = search.features_for

    @functools.wraps(every)
    def first(*arguments):
        return every(*arguments)[:1]

    set_attribute(search, "features_for", first)


if __name__ == "__main__":
    main()
