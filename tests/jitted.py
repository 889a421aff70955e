"""A call as one program: eagerly each operation around a kernel is a program of its own, compiled for one test."""

import jax
import numpy as np


def jitted(function):
    """``function`` whose arrays are operands of one program, and whose other arguments are known as it is traced."""

    def call(*arguments, **keywords):
        leaves, tree = jax.tree.flatten((arguments, keywords))
        arrays = {i: x for i, x in enumerate(leaves) if isinstance(x, jax.Array | np.ndarray)}

        def traced(arrays):
            arguments, keywords = tree.unflatten([arrays.get(i, x) for i, x in enumerate(leaves)])
            return function(*arguments, **keywords)

        return jax.jit(traced)(arrays)

    return call
