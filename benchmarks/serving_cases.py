"""Cases of serving without their arrays: the points of grids, and cascades, with lengths and page tables of numpy.

Lengths and tables are those that our own inputs have for the same point and seed 0. JAX draws them on the CPU: a
process that gives the GPU to torch sets ``JAX_PLATFORMS=cpu`` first.
"""

import functools
import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import cascade_peers
import numpy as np

from attn_tune.ops.fields.cache import LATENT, SAME
from attn_tune.schema.errors import UsageError

CASCADE = "cascade"
_CASCADE_TEXT = re.compile(r"(\d+)x(\d+)\+(\d+)")


class Case(NamedTuple):
    """One call over a cache in pages.

    Attributes:
      point: the name of the row.
      kind: the op's name, or ``cascade``.
      problem: the problem of the op; of a cascade that of ``paged_decode`` over whole sequences.
      new: new tokens, or queries, of each sequence.
      lengths: tokens of each sequence in the cache, the new ones included.
      table: the pages of each sequence in order, ``[B, pages]``; behind its last page it may hold anything.
      shared: pages at the front of each row of the table that all sequences have in common.
      pages: pages of the cache.
      bytes_moved: the fewest bytes of a call.
    """

    point: str
    kind: str
    problem: Any
    new: np.ndarray
    lengths: np.ndarray
    table: np.ndarray
    shared: int
    pages: int
    bytes_moved: int

    @property
    def is_latent(self) -> bool:
        """Values are the first columns of keys."""
        return bool(self.problem.layout == LATENT)

    @property
    def lacks(self) -> str:
        """The reason that a library which knows plain attention alone cannot do the case; empty if it can."""
        p = self.problem
        missing = {
            "codes": p.kv_dtype != SAME,
            "another layout": p.layout not in ("nhd", LATENT),
            "a cache without pages": not p.page_size,
            "another dtype than bfloat16": p.dtype != "bfloat16",
            "values of another width": p.v_head_dim != p.head_dim and not self.is_latent,
            "sinks": getattr(p, "has_sinks", False),
            "a soft cap": getattr(p, "soft_cap", None) is not None,
            "a window": getattr(p, "window", None) is not None,
            "several queries": getattr(p, "q_len", 1) > 1,
        }
        return next((f"not with {name}" for name, has in missing.items() if has), "")


def csr(table: np.ndarray, lengths: np.ndarray, page_size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The pages of sequences in one row: where each begins, the pages, and the tokens of each one's last page."""
    counts = -(-lengths // page_size)
    ends = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    pages = np.concatenate([row[:count] for row, count in zip(table, counts, strict=True)]).astype(np.int32)
    return ends, pages, (lengths - (counts - 1) * page_size).astype(np.int32)


def grid_cases(grid: str, only: Sequence[str]) -> Iterator[Case]:
    """The cases of a grid's points whose names contain one of ``only``; of all points if there are none.

    Raises:
      UsageError: no such grid, or the op of a point has no cache in pages.
    """
    from attn_tune.ops.contract import load
    from attn_tune.ops.registry import get_op
    from attn_tune.tuner.plan.grid import load_grid

    for point in load_grid(grid).points:
        if only and not any(part in point.name for part in only):
            continue
        op = get_op(point.signature.op)
        if op.name not in ("paged_decode", "ragged_paged", "paged_append"):
            raise UsageError(f"{point.name} is of {op.name}; take a grid of paged_decode, ragged_paged or paged_append")
        problem = op.from_signature(point.signature)

        lengths, table, ends = _drawn(load(op.inputs), problem)
        each = getattr(problem, "q_len", None) or problem.tokens // problem.batch
        yield Case(
            point=point.name,
            kind=op.name,
            problem=problem,
            new=np.full(problem.batch, each, np.int32) if ends is None else np.diff(ends),
            lengths=lengths,
            table=np.zeros((problem.batch, 0), np.int32) if table is None else table,
            shared=0,
            pages=problem.input_sizes[0],
            bytes_moved=op.bytes_moved(problem, "fwd"),
        )


def _drawn(make: Callable[..., Any], problem: Any) -> tuple[Any, Any, Any]:
    """Lengths, page table and ends of queries of a problem's inputs; None where they have none."""
    import jax

    def drawn(seed: Any) -> tuple[Any, Any, Any]:
        # Of what is not returned the compiler makes nothing: caches stay unmade.
        operands = make(problem, "fwd", seed)
        return operands.kv_lens, operands.page_table, getattr(operands, "cu_q_lens", None)

    return jax.tree.map(np.asarray, jax.jit(drawn)(0))


def cascade_case(text: str, *, heads: str = "32x8x128", page_size: int = 64) -> Case:
    """The case of ``cascade_peers.py`` that its rows call ``text``, such as ``32x4096+128``.

    Raises:
      UsageError: another text, or a prefix that is not of whole pages.
    """
    import jax

    from attn_tune.ops.paged_decode.problem import Problem

    match = _CASCADE_TEXT.fullmatch(text)
    if match is None or int(match[2]) % page_size:
        raise UsageError(f"a cascade is SEQUENCESxPREFIX+OWN with a prefix of whole pages of {page_size}, not {text!r}")
    batch, prefix, own = map(int, match.groups())
    num_q_heads, num_kv_heads, head_dim = map(int, heads.split("x"))
    problem = Problem(
        batch=batch,
        q_len=1,
        kv_len=prefix + own,
        num_q_heads=num_q_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        v_head_dim=head_dim,
        page_size=page_size,
        scale=1 / math.sqrt(head_dim),
    )
    make = functools.partial(cascade_peers.draw_inputs, problem, prefix)
    table = np.asarray(jax.jit(lambda seed: make(seed).whole_table)(0))
    return Case(
        point=text,
        kind=CASCADE,
        problem=problem,
        new=np.ones(batch, np.int32),
        lengths=np.full(batch, problem.kv_len, np.int32),
        table=table,
        shared=prefix // page_size,
        pages=int(table.max()) + 1,
        bytes_moved=cascade_peers.shared_bytes(problem, prefix),
    )
