"""``MaskInfo``: one description of the pairs that may attend, which keeps flags, segments and positions O(N).

Alignment is at the bottom right: query row ``i`` stands at position ``i + S - T``, key column ``j`` at ``j``, unless
positions are given.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import PartitionSpec
from jaxtyping import Array, Bool, Int

from attn_tune.ops.fields.integers import saturated
from attn_tune.ops.masks.visibility import (
    Window,
    combine_dense,
    dense_4d,
    in_bounds,
    intersect_windows,
    window_of,
)
from attn_tune.ops.typed_jax import jit
from attn_tune.schema.errors import UsageError

# Above the ids of all documents, which padding follows: the Triton kernels compare the ranges of the ids of two tiles,
# and that of the last document and its padding would else meet every document. In this order neither meets the other's.
Q_PADDING = 2**31 - 2
KV_PADDING = 2**31 - 1


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class MaskInfo:
    """One description of a mask: everything that is given must allow a pair (row, column).

    Attributes:
      attention_mask: ``[B, 1 | K | N, T, S]``, ``[B, T, S]`` or, for key padding, ``[B, S]``; nonzero may attend.
      q_segment_ids: ids of the queries; only equal ids attend. Padding is any pair of ids that never meet; the
        constructors write ``Q_PADDING`` and ``KV_PADDING``.
      kv_segment_ids: ids of the keys.
      q_positions: positions of the queries, for ``causal`` and ``sliding_window``; with a window from -2**30 to 2**30.
      kv_positions: positions of the keys.
      q_lengths: the number of queries of each batch entry that count. ``from_lengths`` writes the lengths beside the
        segment ids that say the same; alone they mask nothing. Values stored beyond them may be infinite or NaN.
      kv_lengths: the number of keys of each batch entry that count.
      q_offsets: where the sequences start, and the last one ends, that lie end to end in a batch of one.
        ``from_cum_seqlens`` writes the offsets beside the ids and positions that say the same; alone they mask nothing.
        Who replaces or reorders ids or positions makes them None: kernels may read the offsets instead.
      kv_offsets: the same of the keys.
      causal: a row sees its own position and those before it.
      sliding_window: ``(left, right)``: position ``p`` sees ``[p - left, p + right]``; None is unbounded. An integer
        ``w`` is ``(w, w)``. 2**30 tokens or more hide nothing and become None.

    Raises:
      UsageError: the window is malformed.
    """

    attention_mask: Bool[Array, "..."] | Int[Array, "..."] | None = None
    q_segment_ids: Int[Array, "B T"] | None = None
    kv_segment_ids: Int[Array, "B S"] | None = None
    q_positions: Int[Array, "B T"] | None = None
    kv_positions: Int[Array, "B S"] | None = None
    q_lengths: Int[Array, " B"] | None = None
    kv_lengths: Int[Array, " B"] | None = None
    q_offsets: Int[Array, " R"] | None = None
    kv_offsets: Int[Array, " R"] | None = None
    causal: bool = dataclasses.field(default=False, metadata={"static": True})
    sliding_window: int | Window | None = dataclasses.field(default=None, metadata={"static": True})

    def __post_init__(self):
        if self.sliding_window is not None:
            object.__setattr__(self, "sliding_window", window_of(self.sliding_window))

    @classmethod
    def causal_only(cls) -> "MaskInfo":
        """Causal, bottom-right aligned."""
        return cls(causal=True)

    @classmethod
    def from_dense(cls, attention_mask: Array, **flags: Any) -> "MaskInfo":
        """A dense mask; ``flags`` are ``causal`` and ``sliding_window``."""
        return cls(attention_mask=attention_mask, **flags)

    @classmethod
    def from_segments(
        cls,
        q_segment_ids: Int[Array, "B T"],
        kv_segment_ids: Int[Array, "B S"] | None = None,
        **flags: Any,
    ) -> "MaskInfo":
        """Packed documents; the key side defaults to the query side (self-attention)."""
        kv = q_segment_ids if kv_segment_ids is None else kv_segment_ids
        return cls(q_segment_ids=q_segment_ids, kv_segment_ids=kv, **flags)

    @classmethod
    def from_padding(
        cls,
        kv_valid: Bool[Array, "B S"],
        q_valid: Bool[Array, "B T"] | None = None,
        *,
        q_len: int | None = None,
        **flags: Any,
    ) -> "MaskInfo":
        """Padding, true where there is a token; without ``q_valid`` all ``q_len`` rows (default ``S``) count."""
        kv_valid = jnp.asarray(kv_valid).astype(bool)
        if q_valid is None:
            q_ids = jnp.zeros((kv_valid.shape[0], q_len or kv_valid.shape[1]), jnp.int32)
        else:
            q_ids = jnp.where(jnp.asarray(q_valid).astype(bool), 0, Q_PADDING)
        return cls(q_segment_ids=q_ids, kv_segment_ids=jnp.where(kv_valid, 0, KV_PADDING), **flags)

    @classmethod
    def from_lengths(
        cls,
        kv_lengths: Int[Array, " B"],
        q_lengths: Int[Array, " B"] | None = None,
        *,
        q_len: int,
        kv_len: int,
        **flags: Any,
    ) -> "MaskInfo":
        """Sequences padded at the end to ``q_len`` and ``kv_len``. Alignment stays that of the padded arrays.

        The padding may hold anything, NaN and infinities too; its gradients are zero.
        """
        kv_counted, kv_valid = _counted(kv_lengths, kv_len)
        q_counted = q_valid = None
        if q_lengths is not None:
            q_counted, q_valid = _counted(q_lengths, q_len)
        mask = cls.from_padding(kv_valid, q_valid, q_len=q_len, **flags)
        return dataclasses.replace(mask, q_lengths=q_counted, kv_lengths=kv_counted)

    @classmethod
    def from_cum_seqlens(
        cls,
        cum_seqlens_q: Int[Array, " R"],
        cum_seqlens_k: Int[Array, " R"] | None = None,
        *,
        q_len: int,
        kv_len: int,
        **flags: Any,
    ) -> "MaskInfo":
        """Sequences laid end to end in a batch of one; entry ``r`` is where sequence ``r`` starts, the last is the end.

        Each sequence is aligned at its own bottom right. Tokens past the last offset are padding.

        Raises:
          UsageError: the offsets are not integers, or (where their values are known) do not start at 0, decrease or
            pass the end.
        """
        same = cum_seqlens_k is None or cum_seqlens_k is cum_seqlens_q
        if same and q_len != kv_len:
            raise UsageError(f"cum_seqlens_k is needed: query has {q_len} tokens, key has {kv_len}")
        q_offsets = _checked_offsets("cum_seqlens_q", cum_seqlens_q, q_len)
        kv_offsets = q_offsets
        if not same:
            kv_offsets = _checked_offsets("cum_seqlens_k", cum_seqlens_k, kv_len)
        if q_offsets.shape != kv_offsets.shape:
            raise UsageError(
                f"cum_seqlens_q and cum_seqlens_k must have one length, got {q_offsets.size} and {kv_offsets.size}"
            )
        q_ids = _segment_of_token(q_offsets, q_len, Q_PADDING)
        kv_ids = _segment_of_token(kv_offsets, kv_len, KV_PADDING)
        positions = {}
        if not same:
            # Row i of sequence r stands at (i - start_q) + (len_k - len_q): the ends of both sides meet.
            shift = kv_offsets[1:] - q_offsets[1:]
            q_start = jnp.where(q_ids == Q_PADDING, 0, kv_offsets[q_ids] - shift[q_ids])
            kv_start = jnp.where(kv_ids == KV_PADDING, 0, kv_offsets[kv_ids])
            positions = {
                "q_positions": (jnp.arange(q_len, dtype=jnp.int32) - q_start)[None],
                "kv_positions": (jnp.arange(kv_len, dtype=jnp.int32) - kv_start)[None],
            }
        offsets = {"q_offsets": q_offsets, "kv_offsets": kv_offsets}
        return cls(q_segment_ids=q_ids[None], kv_segment_ids=kv_ids[None], **offsets, **positions, **flags)

    @property
    def window(self) -> Window:
        """``sliding_window`` as a pair."""
        return (None, None) if self.sliding_window is None else self.sliding_window  # type: ignore[return-value]

    def get_or_compute_attention_mask(
        self, q_len: int | None = None, kv_len: int | None = None
    ) -> Bool[Array, "_b _h T S"] | None:
        """The whole mask, dense, as ``[1 | B, heads, T, S]``; None when nothing is masked.

        ``q_len`` and ``kv_len`` are needed only when no array of this mask tells them.

        Raises:
          UsageError: a length is needed and unknown.
        """
        parts: list[Array] = []
        if self.attention_mask is not None:
            parts.append(dense_4d(self.attention_mask))
        if self.q_segment_ids is not None and self.kv_segment_ids is not None:
            same = self.q_segment_ids[:, None, :, None] == self.kv_segment_ids[:, None, None, :]
            parts.append(same)
        if self.causal or self.window != (None, None):
            q_positions, kv_positions = self._positions(q_len, kv_len)
            parts.append(
                in_bounds(
                    q_positions[:, None, :, None],
                    kv_positions[:, None, None, :],
                    causal=self.causal,
                    window=self.window,
                )
            )
        mask = None
        for part in parts:
            mask = part if mask is None else combine_dense(mask, part)
        return mask

    def __and__(self, other: "MaskInfo") -> "MaskInfo":
        """Both masks. Structure is kept where it can be; of two sets of segments or positions the second turns dense.

        Positions that only one side has are adopted by both: ``MaskInfo(causal=True) & packed`` is causal within the
        packed sequences. The lengths and offsets of a side that turns dense are lost: it is a mask like any other; and
        so are the offsets of a side beside which the other one has segments or positions.
        """
        if not isinstance(other, MaskInfo):  # pyright: ignore[reportUnnecessaryIsInstance]
            return NotImplemented
        if self._clashes(other):
            check_pairs(other)
            other = MaskInfo(attention_mask=other.get_or_compute_attention_mask())
        dense = [m for m in (self.attention_mask, other.attention_mask) if m is not None]
        if len(dense) == 2:
            dense = [combine_dense(dense_4d(dense[0]), dense_4d(dense[1]))]
        # Lengths say what the ids of their own side say, offsets what its ids and positions do.
        of_ids = self if self.q_segment_ids is not None else other
        of_rows = self if not other._has_rows() else other if not self._has_rows() else MaskInfo()
        return MaskInfo(
            attention_mask=dense[0] if dense else None,
            q_segment_ids=_first(self.q_segment_ids, other.q_segment_ids),
            kv_segment_ids=_first(self.kv_segment_ids, other.kv_segment_ids),
            q_positions=_first(self.q_positions, other.q_positions),
            kv_positions=_first(self.kv_positions, other.kv_positions),
            q_lengths=of_ids.q_lengths,
            kv_lengths=of_ids.kv_lengths,
            q_offsets=of_rows.q_offsets,
            kv_offsets=of_rows.kv_offsets,
            causal=self.causal or other.causal,
            sliding_window=intersect_windows(self.window, other.window),
        )

    def specs(self, batch: Any = None, heads: Any = None) -> "MaskInfo":
        """The same tree of partition specs, for a mesh whose axes ``batch`` and ``heads`` shard B and N."""
        specs: dict[str, Any] = {"q_offsets": PartitionSpec(None), "kv_offsets": PartitionSpec(None)}
        for name in ("q_segment_ids", "kv_segment_ids", "q_positions", "kv_positions", "q_lengths", "kv_lengths"):
            if (array := getattr(self, name)) is not None:
                specs[name] = PartitionSpec(*_cut(array.shape, batch))
        if self.attention_mask is not None:
            shape = self.attention_mask.shape
            specs["attention_mask"] = PartitionSpec(*_cut(shape, batch, *([heads] if len(shape) == 4 else [])))
        present = {name: spec for name, spec in specs.items() if getattr(self, name) is not None}
        return MaskInfo(**present, causal=self.causal, sliding_window=self.sliding_window)

    def _clashes(self, other: "MaskInfo") -> bool:
        pairs = zip(self._rows(), other._rows(), strict=True)
        return any(a is not None and b is not None and a is not b for a, b in pairs)

    def _has_rows(self) -> bool:
        return any(row is not None for row in self._rows())

    def _rows(self) -> tuple[Array | None, ...]:
        return self.q_segment_ids, self.kv_segment_ids, self.q_positions, self.kv_positions

    def _positions(self, q_len: int | None, kv_len: int | None) -> tuple[Array, Array]:
        if self.q_positions is not None and self.kv_positions is not None:
            return self.q_positions, self.kv_positions
        for array, axis in ((self.q_segment_ids, 1), (self.attention_mask, -2)):
            if q_len is None and array is not None and array.ndim - (axis == -2) >= 2:
                q_len = array.shape[axis]
        for array in (self.kv_segment_ids, self.attention_mask):
            if kv_len is None and array is not None:
                kv_len = array.shape[-1]
        if q_len is None or kv_len is None:
            raise UsageError("a causal or windowed mask has no size of its own: give q_len and kv_len")
        rows = jnp.arange(q_len, dtype=jnp.int32) + (kv_len - q_len)
        return rows[None], jnp.arange(kv_len, dtype=jnp.int32)[None]


def check_pairs(mask: MaskInfo) -> None:
    """Refuse ids or positions of one side alone: they say nothing of a pair.

    Raises:
      UsageError: there are such.
    """
    for name in ("segment_ids", "positions"):
        missing = [side for side in ("q", "kv") if getattr(mask, f"{side}_{name}") is None]
        if len(missing) == 1:
            raise UsageError(f"{missing[0]}_{name} is missing: give both sides")


def _ids_of_tokens(offsets: Int[Array, " R"], length: int, padding: int) -> Int[Array, " L"]:
    # One program that stores no more than its result. A search would take a loop, to each step of which a GPU's host
    # has to go, and JAX cannot do it within a shard_map over some axes of a mesh.
    tokens = jnp.arange(length, dtype=jnp.int32)
    ids = (tokens[:, None] >= offsets[None]).sum(1, dtype=jnp.int32) - 1
    return jnp.where(tokens < offsets[-1], ids, padding)


_segment_of_token = jit(_ids_of_tokens, static_argnums=(1, 2))


def _checked_offsets(name: str, offsets: Any, length: int) -> Int[Array, " R"]:
    is_known = not isinstance(offsets, Tracer)
    known = np.asarray(offsets) if is_known else None
    offsets = jnp.asarray(offsets)
    if offsets.ndim != 1 or offsets.size < 2 or not jnp.issubdtype(offsets.dtype, jnp.integer):
        raise UsageError(f"{name} must be a vector of at least two integers, got {offsets.dtype}{list(offsets.shape)}")
    if known is not None and (known[0] != 0 or (known[1:] < known[:-1]).any() or known[-1] > length):
        wrong = (known < np.maximum.accumulate(known)) | (known > length)
        wrong[0] = known[0] != 0
        at = int(np.argmax(wrong))
        raise UsageError(
            f"{name} must start at 0, never decrease and end at most at {length}, got {known[at]} at {at} in "
            f"{known.dtype}{list(known.shape)}"
        )
    return offsets.astype(jnp.int32)


def _counted(lengths: Any, most: int) -> tuple[Int[Array, " B"], Bool[Array, "B L"]]:
    # As int32 before: narrower integers wrap `most`.
    counted = jnp.clip(jnp.asarray(saturated(lengths)).astype(jnp.int32), 0, most)
    return counted, jnp.arange(most)[None] < counted[:, None]


def _cut(shape: tuple[int, ...], *axes: Any) -> list[Any]:
    """The axes of a mesh that cut the first dimensions of an array; one of size 1 serves all and stays whole."""
    cut = [axis if size > 1 else None for size, axis in zip(shape, axes, strict=False)]
    return cut + [None] * (len(shape) - len(cut))


def _first(a: Any, b: Any) -> Any:
    return b if a is None else a
