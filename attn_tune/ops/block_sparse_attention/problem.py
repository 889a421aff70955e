"""The static half of one block-sparse call: shapes, sizes of blocks and flags, and the op's signature."""

from dataclasses import dataclass
from typing import Any

from attn_tune.ops.contract import Workload, workload_field
from attn_tune.ops.fields.attention import (
    MASK_FIELDS,
    SIZE_FIELDS,
    all_values,
    check_choice,
    flag,
    shared_arguments,
    shared_values,
)
from attn_tune.ops.flash_attention import problem as dense
from attn_tune.schema.errors import UsageError
from attn_tune.schema.signature import Field, FieldKind, Signature

DECIDES_NO_CODE = "the op's contract, whose version is in every signature"

NAME = "block_sparse_attention"
VERSION = 1
LEAST_BLOCK, DEFAULT_BLOCK = 16, 128
# The axes of batch and heads that a mask of blocks spans.
SPANS = ("11", "b1", "1n", "bn")
WORKLOADS = (
    Workload(name="random", summary="one pair of blocks in eight at random, and those on the diagonal"),
    Workload(name="documents", summary="documents of uneven lengths, cut at blocks; each sees itself"),
    Workload(name="local", summary="blocks within three of the diagonal, every eighth block of keys, and the first"),
    Workload(name="full", summary="all pairs of blocks"),
)

_C = FieldKind.CATEGORICAL
_OF_MASKS = ("causal", "left", "right")

FIELDS = (
    *SIZE_FIELDS,
    Field(name="dtype", kind=_C, is_int=False, doc="dtype of query, key, value"),
    *(field for field in MASK_FIELDS if field.name in _OF_MASKS),
    Field(name="bq", kind=_C, is_int=True, default=DEFAULT_BLOCK, doc="query rows of a block of the mask"),
    Field(name="bk", kind=_C, is_int=True, default=DEFAULT_BLOCK, doc="keys of a block of the mask"),
    Field(
        name="blocks",
        kind=_C,
        is_int=False,
        default="11",
        doc="mask of blocks: `bn`, with 1 for an axis that it does not span",
    ),
    *(field for field in dense.FIELDS if field.name in ("seg", "len", "cap", "prec")),
    workload_field(WORKLOADS),
)
_SHARED = (*(field.name for field in SIZE_FIELDS), "dtype", *_OF_MASKS)


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem(dense.Problem):
    """One call, without its arrays: one of ``flash_attention`` with a mask of blocks.

    It has no bias, dense mask, sinks, dropout, positions, offsets or rounded logits.

    Attributes:
      mask_block_q, mask_block_k: query rows and keys of a block of the mask, powers of two from 16 on.
      block_dims: the axes of batch and heads that the mask spans, "1" where it broadcasts: ``"b1"``.
      workload: the pattern of the mask that inputs are made with.
      at_edges: inputs have rows of blocks without a block, with one and with all, and keys that no row lists. Not in
        the signature.

    Raises:
      UsageError: an impossible shape or flag; the message names it.
    """

    mask_block_q: int = DEFAULT_BLOCK
    mask_block_k: int = DEFAULT_BLOCK
    block_dims: str = "11"
    workload: str = WORKLOADS[0].name
    at_edges: bool = False

    def __post_init__(self):
        dense.Problem.__post_init__(self)
        for word, size in (("bq", self.mask_block_q), ("bk", self.mask_block_k)):
            if size < LEAST_BLOCK or size & (size - 1):
                raise UsageError(f"block_size={size!r} ({word}) must be a power of two of at least {LEAST_BLOCK}")
        check_choice("blocks", self.block_dims, SPANS, name="block_dims")
        # An axis of size 1 broadcasts under every name: one problem, one signature.
        sizes = zip(self.block_dims, (self.batch, self.num_q_heads), strict=True)
        object.__setattr__(self, "block_dims", "".join("1" if size == 1 else axis for axis, size in sizes))
        refused = {
            "a bias": self.bias_dims,
            "a dense mask": self.mask_dims,
            "sinks": self.has_sinks,
            "dropout": self.dropout_rate,
            "positions": self.has_positions,
            "offsets": self.has_offsets,
            "rounded logits": self.logits_dtype != "float32",
        }
        if found := [name for name, asked in refused.items() if asked]:
            raise UsageError(f"{NAME} has no {found[0].removeprefix('a ')}")

    @property
    def block_mask_shape(self) -> tuple[int, int, int, int]:
        """The shape of the mask of blocks."""
        batch, heads = (axis != "1" for axis in self.block_dims)
        return (
            self.batch if batch else 1,
            self.num_q_heads if heads else 1,
            -(-self.q_len // self.mask_block_q),
            -(-self.kv_len // self.mask_block_k),
        )

    @property
    def signature(self) -> Signature:
        """The problem's key."""
        shared = shared_values(self)
        own = {
            "bq": self.mask_block_q,
            "bk": self.mask_block_k,
            "blocks": self.block_dims,
            "seg": int(self.has_segments),
            "len": int(self.has_lengths),
            "cap": shared["cap"],
            "prec": self.precision,
            "workload": self.workload,
        }
        return Signature.build(NAME, VERSION, FIELDS, {name: shared[name] for name in _SHARED} | own)

    @classmethod
    def from_signature(cls, signature: Signature) -> "Problem":
        """A problem with this signature; scale is ``1/sqrt(H)``, the cap takes its canonical value."""
        values = all_values(signature, FIELDS)
        absent: dict[str, Any] = {"mask": None, "bias": None, "sinks": 0, "drop": 0}
        return cls(
            **shared_arguments(values | absent),
            mask_block_q=values["bq"],
            mask_block_k=values["bk"],
            block_dims=values["blocks"],
            has_segments=flag(values, "seg"),
            has_lengths=flag(values, "len"),
            precision=values["prec"],
            workload=values["workload"],
        )


def flops(problem: Problem, direction: str) -> int:
    """Floating-point operations of the pairs that the workload's mask lists and causality and window leave visible.

    Forward: two products. Backward: 2.5 times as many, as of ``flash_attention``.
    """
    # Problems are made where numpy is not wanted.
    from attn_tune.ops.block_sparse_attention.patterns import listed_pairs

    forward = 2 * listed_pairs(problem) * (problem.head_dim + problem.v_head_dim)
    return forward if direction == "fwd" else forward * 5 // 2


def bytes_moved(problem: Problem, direction: str) -> int:
    """The fewest bytes: each input read once, each output written once, all keys counted."""
    return dense.bytes_moved(problem, direction)
