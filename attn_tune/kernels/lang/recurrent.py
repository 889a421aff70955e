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
    def is_decoding(self) -> bool: ...
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

    They round what they add to a state to the working dtype, and every step would do so. One token without the delta
    rule is multiplied exactly.
    """
    is_exact = problem.dtype == "float32" or (max(problem.lengths) == 1 and not problem.has_delta)
    if direction == "bwd" or is_exact or not problem.is_decoding:
        return None
    return f"it is a step of decoding: kernels over chunks would round states to {problem.dtype} at each"
