"""Configs of the XLA kernel: how many rows and columns one step of the scan holds."""

from dataclasses import dataclass

from attn_tune.schema.errors import UsageError

DECIDES_NO_CODE = "names and bounds of knobs; a row holds their values"


@dataclass(frozen=True, kw_only=True, slots=True)
class ForwardConfig:
    """Chunk lengths, in query rows and key columns. A chunk longer than its axis is cut to it."""

    chunk_q: int
    chunk_k: int

    def __post_init__(self):
        _check(self.chunk_q, self.chunk_k)


@dataclass(frozen=True, kw_only=True, slots=True)
class BackwardConfig:
    """Chunk lengths, in query rows and key columns. A chunk longer than its axis is cut to it."""

    chunk_q: int
    chunk_k: int

    def __post_init__(self):
        _check(self.chunk_q, self.chunk_k)


def _check(chunk_q: int, chunk_k: int) -> None:
    for name, value in (("chunk_q", chunk_q), ("chunk_k", chunk_k)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise UsageError(f"{name} must be a positive integer, got {value!r}")
