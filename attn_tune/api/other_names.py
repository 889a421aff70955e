"""A hint for callers who give an argument by the name that it has in a like function."""

import functools
from collections.abc import Callable, Mapping

# From names of ``jax.nn.dot_product_attention``, and ours of that name, to those of ``flash_attention``.
OF_JAX = {
    "is_causal": "causal",
    "mask": "attention_mask",
    "scale": "softmax_scale",
    "local_window_size": "sliding_window",
    "implementation": "platform",
}


def hinting[**P, R](other: str, names: Mapping[str, str]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A decorator for a function whose arguments are called something else in ``other``.

    Signature and types stay the function's own: type checkers, editors and ``inspect`` see the names that it takes.

    Args:
      other: the like function, with all that a caller who goes there should know.
      names: from a name of ``other`` to that of the decorated function, or to words that say what to do instead.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            for name in kwargs:
                if name in names:
                    here = names[name]
                    # What Python itself raises for an unknown argument.
                    raise TypeError(
                        f"{function.__name__}() got an unexpected keyword argument {name!r}: "
                        f"{f'here it is {here!r}' if here.isidentifier() else here}; {name!r} is an argument of {other}"
                    )
            return function(*args, **kwargs)

        return call

    return decorate
