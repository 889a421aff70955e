"""The knobs of FlashAttention-4's kernels for Hopper: every field that its own tables choose by head dim."""

from dataclasses import dataclass
from typing import Annotated

from attn_tune.kernels.knobs import Choice, Flag, Knobs, Multiple, Range

DECIDES_NO_CODE = "names and bounds of knobs; a row holds their values"

# A warpgroup computes with 64 rows of one operand at a time.
WARPGROUP_ROWS = 64
FORWARD_KEYS = (64, 80, 96, 112, 128, 144, 160, 176, 192, 224, 256)
BACKWARD_ROWS = (64, 80, 96, 112, 128)
BACKWARD_KEYS = (64, 80, 96, 128, 160, 192)


@dataclass(frozen=True, kw_only=True, slots=True)
class ForwardConfig(Knobs):
    """The forward: a warpgroup for each 64 rows of a tile, and one that loads."""

    block_q: Annotated[int, Choice((64, 128, 192), doc="query rows of a tile: one to three warpgroups")]
    block_k: Annotated[int, Multiple(16, tried=FORWARD_KEYS, doc="keys of a tile")]
    num_stages: Annotated[int, Range(2, 4, tried=(2, 3), doc="tiles of keys and values in shared memory")] = 2
    p_in_registers: Annotated[
        bool, Flag(doc="the weights go from registers into the product with the values, not through shared memory")
    ] = True
    overlap: Annotated[
        bool, Flag(doc="the softmax of a tile overlaps the product of the one before in the same warpgroup")
    ] = True
    pack_heads: Annotated[bool, Flag(doc="the query heads of one key head become rows of one tile")] = False


@dataclass(frozen=True, kw_only=True, slots=True)
class BackwardConfig(Knobs):
    """The backward: keys stay, rows pass; its warpgroups share five products, and one more warpgroup loads.

    A product whose rows and columns change places (``transpose_``) has its other side in units of 64. The ``groups_``
    are warpgroups along one side of a product; the rest of them lies along the other side.
    """

    block_q: Annotated[int, Multiple(16, tried=BACKWARD_ROWS, doc="query rows that pass at a time")]
    block_k: Annotated[int, Multiple(16, tried=BACKWARD_KEYS, doc="keys that stay")]
    stages: Annotated[int, Range(1, 3, tried=(1, 2), doc="tiles of queries in shared memory")] = 2
    stage_dout: Annotated[bool, Flag(doc="as many tiles of the output's gradient as of queries, not one")] = True
    stage_ds: Annotated[bool, Flag(doc="as many tiles of weights and their gradients as of queries, not one")] = True
    transpose_s: Annotated[bool, Flag(doc="logits and the gradients of weights are made with keys as rows")] = True
    transpose_dkv: Annotated[bool, Flag(doc="dk and dv are made with the head dim as rows")] = False
    transpose_dq: Annotated[bool, Flag(doc="dq is made with the head dim as rows")] = False
    groups_s: Annotated[int, Choice((1, 2, 3), doc="warpgroups along the query rows of the logits")] = 1
    groups_dkv: Annotated[int, Choice((1, 2, 3), doc="warpgroups along the keys of dk and dv")] = 2
    groups_dq: Annotated[int, Choice((1, 2, 3), doc="warpgroups along the query rows of dq")] = 1
    # Three have 160 registers a thread: their tiles would not fit at any head dim that they divide.
    warpgroups: Annotated[int, Choice((2, 3), tried=(2,), doc="warpgroups that compute")] = 2
    one_makes_dq: Annotated[bool, Flag(doc="one warpgroup alone makes dq")] = False

    @property
    def dout_stages(self) -> int:
        """Tiles of the output's gradient."""
        return self.stages if self.stage_dout else 1

    @property
    def ds_stages(self) -> int:
        """Tiles of weights and their gradients."""
        return self.stages if self.stage_ds else 1

    @property
    def dq_warpgroups(self) -> int:
        """Warpgroups that make dq."""
        return 1 if self.one_makes_dq else self.warpgroups

    def conflict(self) -> str | None:
        if self.stages == 1 and not (self.stage_dout and self.stage_ds):
            return "with one stage, stage_dout and stage_ds choose nothing and must be true"
        for name, groups in (("groups_s", self.warpgroups), ("groups_dkv", self.warpgroups)):
            if groups % getattr(self, name):
                return f"{name}={getattr(self, name)} must divide warpgroups={groups}"
        if self.dq_warpgroups % self.groups_dq:
            return f"groups_dq={self.groups_dq} must divide the {self.dq_warpgroups} warpgroups that make dq"
        if self.one_makes_dq and self.warpgroups != 2:
            return "one_makes_dq is for two warpgroups"
        return None
