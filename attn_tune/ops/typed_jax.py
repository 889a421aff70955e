"""Functions of JAX that keep the types of what they are given; JAX's own declare none."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from collections.abc import Callable

import jax
from jaxtyping import Array, Int


def jit[**P, T](function: Callable[P, T], static_argnums: int | tuple[int, ...] = ()) -> Callable[P, T]:
    """``jax.jit`` of ``function``."""
    return jax.jit(function, static_argnums=static_argnums)


def compile_for(function: Callable[..., object], *arguments: object) -> None:
    """Compile the result of ``jit`` for arguments whose arrays may be shapes alone. Nothing is run.

    Later calls with such arguments find the program compiled.
    """
    function.lower(*arguments).compile()  # pyright: ignore[reportFunctionMemberAccess]


def vjp[T](function: Callable[..., T], *primals: Array | None) -> tuple[T, Callable[[T], tuple[Array, ...]]]:
    """``jax.vjp``: the result of ``function``, and the function from its cotangent to those of ``primals``."""
    return jax.vjp(function, *primals)


def map_rows[A, T](function: Callable[[A], T], rows: A) -> T:
    """``jax.lax.map``: the results of ``function`` for each row of ``rows``, one after the other, stacked."""
    return jax.lax.map(function, rows)


def fori_loop[T](
    start: int | Int[Array, ""], stop: int | Int[Array, ""], body: Callable[[Int[Array, ""], T], T], initial: T
) -> T:
    """``jax.lax.fori_loop``: ``body`` of each index from ``start`` until ``stop`` and of what it returned before."""
    return jax.lax.fori_loop(start, stop, body, initial)
