"""The static half of one decoding call over a cache: its queries beside what every call over a cache has."""

from dataclasses import dataclass
from typing import ClassVar

from attn_tune.ops.contract import workload_field
from attn_tune.ops.fields.cache import LATENT, LAYOUTS
from attn_tune.ops.fields.cache_problem import HEAD_FIELDS, CacheAttention, least_bytes
from attn_tune.ops.workloads import LENGTHS, profile_lengths
from attn_tune.schema.errors import UsageError
from attn_tune.schema.signature import Field, FieldKind

DECIDES_NO_CODE = "the op's contract, whose version is in every signature"

NAME = "paged_decode"
VERSION = 1
MOST_QUERIES = 8

FIELDS = (
    Field(name="b", kind=FieldKind.SCALABLE, is_int=True, doc="sequences"),
    # Few values, and each is another kind of work: one query a step, or the verification of a draft.
    Field(name="t", kind=FieldKind.CATEGORICAL, is_int=True, doc="new tokens of a sequence, 1 to 8"),
    Field(name="s", kind=FieldKind.SCALABLE, is_int=True, doc="longest sequence, new tokens included"),
    *HEAD_FIELDS,
    workload_field(LENGTHS),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem(CacheAttention):
    """One call, without its arrays.

    Query ``i`` of a sequence of ``L`` tokens, the new ones included, stands at position ``L - T + i`` and sees the keys
    from ``window`` before it to itself. All other attributes are those of ``CacheAttention``.

    Attributes:
      q_len: ``T``, the new tokens of each sequence.

    Raises:
      UsageError: an impossible size or flag; the message names it.
    """

    NAME: ClassVar = NAME
    VERSION: ClassVar = VERSION
    FIELDS: ClassVar = FIELDS
    QUERIES: ClassVar = {"q_len": "t"}
    LAYOUTS: ClassVar = (*LAYOUTS, LATENT)

    q_len: int

    def __post_init__(self):
        CacheAttention.__post_init__(self)
        if self.q_len > MOST_QUERIES:
            raise UsageError(f"t={self.q_len} (q_len) is above {MOST_QUERIES}: longer chunks are prefill")

    @property
    def given_lengths(self) -> tuple[int, ...]:
        """The inputs' ``kv_lens`` before they are shuffled, those of the workload ascending.

        Those at the edges are all that the cache holds, which is more than ``kv_len``, nothing, one token, a page, a
        page and one; and impossible ones, which count as all that it holds and as nothing.
        """
        if self.at_edges:
            page = self.page_size or 16
            known = (self.input_capacity, 0, 1, page, page + 1, self.kv_len - 1, 2**31 - 1, -3)
            edges = (*known, *self.tile_ends)
            return tuple(edges[i % len(edges)] for i in range(self.batch))
        return profile_lengths(self.workload, self.batch, self.kv_len)

    @property
    def lengths(self) -> tuple[int, ...]:
        """The tokens that count of each of the inputs' sequences."""
        return tuple(min(max(length, 0), self.input_capacity) for length in self.given_lengths)


def visible_keys(problem: Problem, length: int) -> int:
    """The keys of a sequence of ``length`` tokens that at least one of its queries sees."""
    return length if problem.window is None else min(length, problem.window + problem.q_len)


def flops(problem: Problem, direction: str) -> int:
    """Floating-point operations of the visible pairs of the workload's lengths, two per multiply-add."""
    pairs = 0
    for length in problem.lengths:
        for position in range(max(0, length - problem.q_len), length):
            pairs += position + 1 if problem.window is None else min(position, problem.window) + 1
    return 2 * problem.num_q_heads * pairs * (problem.head_dim + problem.v_head_dim)


def bytes_moved(problem: Problem, direction: str) -> int:
    """The fewest bytes: each visible key and value read once, queries read once, outputs written once."""
    keys = sum(visible_keys(problem, length) for length in problem.lengths)
    return least_bytes(problem, keys, problem.batch * problem.q_len)
