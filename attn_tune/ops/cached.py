"""A cache of functions made for arguments that mostly, but not always, have a hash."""

import functools
from collections.abc import Callable

_LIMIT = 4096


def cached[**P, T](make: Callable[P, T]) -> Callable[P, T]:
    """``make`` with its results remembered; called every time where an argument has no hash.

    A config of an installed kernel may hold a list or a dict.
    """
    remembered = functools.lru_cache(maxsize=_LIMIT)(make)

    @functools.wraps(make)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            hash((args, *kwargs.items()))
        except TypeError:
            return make(*args, **kwargs)
        return remembered(*args, **kwargs)

    return call
