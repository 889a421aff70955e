"""Configs of the XLA kernel: how many rows and columns one step of the scan holds."""

from dataclasses import dataclass
from typing import Annotated

from attn_tune.kernels.knobs import Knobs, Multiple

_CHUNKS = (64, 128, 256, 512, 1024, 2048)

DECIDES_NO_CODE = "names and bounds of knobs; a row holds their values"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Chunks(Knobs):
    """Chunk lengths. A chunk longer than its axis is cut to it."""

    chunk_q: Annotated[int, Multiple(tried=_CHUNKS, doc="query rows of one step")]
    chunk_k: Annotated[int, Multiple(tried=_CHUNKS, doc="key columns of one step")]


@dataclass(frozen=True, kw_only=True, slots=True)
class ForwardConfig(_Chunks):
    """The forward's only launch."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BackwardConfig(_Chunks):
    """The backward's only launch."""
