"""The knobs of the launch that prepares chunks, each by itself."""

from dataclasses import dataclass
from typing import Annotated

from attn_tune.kernels.knobs import Knobs, PowerOfTwo, Range

DECIDES_NO_CODE = "names and bounds of knobs; a row holds their values"


@dataclass(frozen=True, kw_only=True, slots=True)
class Chunks(Knobs):
    """Chunks, and the launch that prepares each of them by itself."""

    chunk: Annotated[int, PowerOfTwo(16, 64, tried=(32, 64), doc="tokens of a chunk")]
    prepare_warps: Annotated[
        int, PowerOfTwo(1, 8, tried=(2, 4, 8), doc="warps that prepare a chunk: solve its triangular system")
    ]
    prepare_registers: Annotated[
        int | None,
        Range(
            64,
            255,
            tried=(168, 128),
            doc="registers a thread at most in that launch, so that one more block fits a multiprocessor; None leaves "
            "it to the compiler",
        ),
    ] = None
