"""Reads the steps between the logits and the weights: masks, biases, sinks, a soft cap, dropout."""

from dataclasses import dataclass, field

import numpy as np

from attn_tune.ops.flash_attention.recognise.axes import Cone, Track, root
from attn_tune.ops.flash_attention.recognise.masks import (
    Pattern,
    classify,
    evaluate_scalar,
    is_known,
    sample,
    varying,
)
from attn_tune.ops.flash_attention.recognise.sizes import Sizes
from attn_tune.ops.program_graph import Value

# Logits that are set to, or lowered by, so much are not seen.
HIDDEN = -1e4


class UnreadableError(Exception):
    """Raised when an attention has a step that no signature expresses; the message names it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Traits:
    """Everything in a signature besides sizes.

    Attributes:
      mask: all masks together.
      bias_dims: letters of the axes of a bias.
      has_sinks: whether a column of sinks is added to the logits.
      soft_cap: whether the logits are capped by ``tanh``.
      dropout: whether weights are dropped.
    """

    mask: Pattern = field(default_factory=Pattern)
    bias_dims: frozenset[str] = frozenset()
    has_sinks: bool = False
    soft_cap: bool = False
    dropout: bool = False


def read_traits(cone: Cone, end: tuple[Value, int] | None, sizes: Sizes) -> Traits:
    """Reads the traits of the attention whose logits start ``cone`` and whose weights are read by ``end``.

    Raises:
      UnreadableError: something has no place in a signature.
    """
    reader = _Reader(cone, sizes)
    for value in _path(cone, end):
        reader.read(value)
    pattern = classify(reader.masks, sizes.q_len, sizes.kv_len)
    steps = frozenset[str]().union(*(t.steps for t in reader.tracks))
    return Traits(
        mask=pattern,
        bias_dims=frozenset(reader.bias),
        has_sinks="sinks" in steps,
        soft_cap="tanh" in steps,
        dropout=reader.dropout,
    )


def _path(cone: Cone, end: tuple[Value, int] | None) -> list[Value]:
    """The values of the cone that lead to the weights, in order; without an end, those before and at the ``exp``."""
    if end is None:
        last = [v for v in cone.tracks if v.kind in ("exp", "exp2") and v.shape][:1]
    else:
        last = [end[0].inputs[end[1]]]
    needed: set[Value] = set()
    while last:
        value = last.pop()
        if value in cone.tracks and value not in needed:
            needed.add(value)
            last += value.inputs
    return [value for value in cone.tracks if value in needed]


class _Reader:
    def __init__(self, cone: Cone, sizes: Sizes):
        self.cone = cone
        self.sizes = sizes
        self.tracks: list[Track] = []
        self.masks: list[tuple[Value, tuple[str, ...], bool]] = []
        self.bias: set[str] = set()
        self.dropout = False

    def read(self, value: Value) -> None:
        track = self.cone.tracks[value]
        self.tracks.append(track)
        others = [v for v in value.inputs if v not in self.cone.tracks]
        if not others or len(others) == len(value.inputs):
            return
        inside = [self.cone.tracks[v] for v in value.inputs if v in self.cone.tracks]
        before = not any("exp" in t.steps for t in inside)
        if value.kind == "select":
            self.select(value, track, before)
        elif value.kind in ("add", "subtract", "multiply", "divide"):
            for other in others:
                self.arithmetic(value, other, track, before)
        elif (
            value.kind in ("max", "min") and before and any(varying(o) for o in others) and any(t.maxed for t in inside)
        ):
            raise UnreadableError("its softmax runs over chunks in a loop; a chunk does not say how long the whole is")

    def select(self, value: Value, track: Track, before: bool) -> None:
        which, on, off = value.inputs
        if which in self.cone.tracks:
            return
        keeps = on in self.cone.tracks
        hidden = off if keeps else on
        level = evaluate_scalar(hidden)
        if before:
            if level is not None and level <= HIDDEN:
                self.masks.append((which, self.letters(track, which), not keeps))
            return
        known = {root(m) for m, _, _ in self.masks}
        # A mask may be laid on the weights once more; anything else that drops weights is dropout.
        if root(which) not in known and level == 0 and not is_known(which) and varying(which):
            self.dropout = True

    def arithmetic(self, value: Value, other: Value, track: Track, before: bool) -> None:
        axes = varying(other)
        letters = self.letters(track, value)
        named = {letters[i] for i in axes if i < len(letters)} - {""}
        if not named:
            return
        if not before:
            self.dropout = self.dropout or bool(named & {"t", "s"})
        elif value.kind in ("multiply", "divide"):
            what = ", ".join(sorted(named))
            raise UnreadableError(f"its logits are multiplied by an array along {what}")
        elif (mask := self.additive_mask(other, letters)) is not None:
            self.masks.append(mask)
        elif "s" not in named and not named - {"b", "n", "t"} and track.maxed:
            # What is subtracted from a row before the exp changes nothing.
            return
        else:
            self.bias |= named

    def additive_mask(self, other: Value, letters: tuple[str, ...]) -> tuple[Value, tuple[str, ...], bool] | None:
        """A term that is 0 where a pair is seen and hugely negative elsewhere, as the mask that it is."""
        inner = other
        while inner.kind in ("convert", "copy"):
            inner = inner.inputs[0]
        if inner.kind == "broadcast" and inner.inputs[0].kind == "select":
            dims: list[int] = inner.attributes["dims"]
            letters = tuple(letters[d] for d in dims)
            inner = inner.inputs[0]
        if inner.kind == "select":
            which, on, off = inner.inputs
            levels = evaluate_scalar(on), evaluate_scalar(off)
            if levels[0] == 0 and levels[1] is not None and levels[1] <= HIDDEN:
                return which, letters, False
            if levels[1] == 0 and levels[0] is not None and levels[0] <= HIDDEN:
                return which, letters, True
        if is_known(inner) and inner.shape and set(letters) & {"t", "s"}:
            found = np.asarray(sample(inner, letters, self.sizes.q_len, self.sizes.kv_len))
            if ((found == 0) | (found <= HIDDEN)).all() and (found == 0).any():
                zero = Value("constant", (), inner.dtype, (), {"value": 0})
                shown = Value("compare", inner.shape, "bool", (inner, zero), {"direction": "EQ"})
                return shown, letters, False
        return None

    def letters(self, track: Track, value: Value) -> tuple[str, ...]:
        """The letters of the axes of a value of this shape: heads and their groups are both ``n``."""
        names = {"k": "n", "g": "n"}
        found: list[str] = []
        for axis in track.axes:
            letter = "".join(dict.fromkeys(self.sizes.letters[a] for a in axis))
            found.append(names.get(letter, "n" if set(letter) <= {"k", "g"} and letter else letter))
        letters = tuple(a if len(a) <= 1 else "" for a in found)
        return letters if len(letters) == len(value.shape) else ("",) * len(value.shape)
