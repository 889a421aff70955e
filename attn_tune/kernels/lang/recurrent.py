"""The fields of a problem with states that shared code reads, whatever op the problem is of."""

from typing import ClassVar, Protocol

from attn_tune.schema.signature import Signature

DECIDES_NO_CODE = "the names of a problem's fields, and a refusal"


class Recurrent(Protocol):
    """A problem of an op whose state goes from token to token; value heads share those of queries and keys."""

    has_delta: ClassVar[bool]

    @property
    def signature(self) -> Signature: ...
    @property
    def batch(self) -> int: ...
    @property
    def length(self) -> int: ...
    @property
    def lengths(self) -> tuple[int, ...]: ...
    @property
    def num_value_heads(self) -> int: ...
    @property
    def num_key_heads(self) -> int: ...
    @property
    def group_size(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def v_head_dim(self) -> int: ...
    @property
    def dtype(self) -> str: ...
    @property
    def gate(self) -> str: ...
    @property
    def has_initial_state(self) -> bool: ...
    @property
    def has_final_state(self) -> bool: ...
    @property
    def has_pool(self) -> bool: ...
    @property
    def ragged(self) -> bool: ...
    @property
    def scale(self) -> float: ...


def refuses_gradients(problem: Recurrent, direction: str) -> str | None:
    """The reason that no kernel makes gradients of this problem, or None."""
    if problem.has_pool and direction == "bwd":
        return "state=pool: states are updated in place, so there is no backward"
    return None


def rounds_states(problem: Recurrent, direction: str) -> str | None:
    """The reason that kernels over chunks would not keep the states of a decoding job exact, or None.

    They round what the delta rule adds to a state to the working dtype, and every call of one token would do so.
    """
    if problem.has_delta and problem.length == 1 and direction == "fwd":
        return f"t=1: kernels over chunks round what they add to a state to {problem.dtype}, at every call of a decode"
    return None
