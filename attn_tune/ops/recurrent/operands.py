"""The array half of one call of linear attention, and what its backward reads."""

from typing import NamedTuple

from jaxtyping import Array, Float, Int

DECIDES_NO_CODE = "the op's contract, whose version is in every signature"


class Operands(NamedTuple):
    """Normalised arrays. Optional ones are None exactly when the problem says so. ``R`` is ``B``, or 1 if ragged.

    For each sequence and value head, from one token to the next::

        S = diag(exp(g)) S
        S = S + k u^T
        out = scale S^T q

    with ``u = beta (v - S^T k)`` of the delta rule, and ``u = v`` without it. A gate that is one number is the same for
    all rows of ``S``.

    Of a ragged call sequence ``s`` has the tokens from ``cu_seqlens[s]`` on, before ``cu_seqlens[s + 1]``; it may have
    none. Tokens of no sequence may hold anything; their outputs and gradients are zero.

    Attributes:
      q, k: queries and keys; value head ``n`` has those of head ``n // (N // K)``.
      v: values.
      g: natural logarithms of the gates, from ``LOWEST_GATE``, whose factor is exactly zero, to 0. Never infinite.
        ``[N]``, ``[R, T, N]`` or ``[R, T, N, H]``, by the problem's ``gate``.
      beta: strengths of the update.
      initial_state: the states before the first token of each sequence; of a pool one for each of its slots.
      cu_seqlens: the first token of each sequence and the end of the last one, within ``[0, T]``; it never falls.
      slots: with a pool the slot of each sequence, no two alike. One that the pool does not have stands for a state of
        zeros, and what becomes of it is not kept.
    """

    q: Float[Array, "R T K H"]
    k: Float[Array, "R T K H"]
    v: Float[Array, "R T N V"]
    g: Float[Array, "..."] | None = None
    beta: Float[Array, "R T N"] | None = None
    initial_state: Float[Array, "states N H V"] | None = None
    cu_seqlens: Int[Array, " ends"] | None = None
    slots: Int[Array, " B"] | None = None


class BackwardInputs(NamedTuple):
    """Everything a backward reads. It recomputes what it needs of the forward, which leaves it nothing.

    Attributes:
      operands: those of the forward.
      dout: the cotangent of the output; of tokens of no sequence it may be anything.
      dstate: the float32 cotangent of the final states; None where these are no output.
    """

    operands: Operands
    dout: Float[Array, "R T N V"]
    dstate: Float[Array, "B N H V"] | None = None
