"""The software a fact was found under, and how far it is from the software that asks."""

import enum
from dataclasses import asdict, dataclass

from attn_tune.schema.digest import digest_json

UNKNOWN = ""


class Grade(enum.StrEnum):
    """The worth of a row from one environment in another, best first."""

    VERIFIED = "verified"
    """The same source and the same compilers."""
    PORTABLE = "portable"
    """The same source, another compiler."""
    STALE = "stale"
    """The kernel's source has changed, or is unknown on either side."""
    FOREIGN = "foreign"
    """Another version of the op's contract."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Environment:
    """Versions as text; ``""`` is unknown, and unknown never equals unknown.

    ``compiler`` is what turns the kernel into machine code: ptxas or CUDA on NVIDIA, libtpu on TPU.
    ``source_hash`` is the digest of the kernel's own modules.

    Attributes:
      jax, jaxlib: their versions.
      triton: the version of Triton.
      driver: the version of the driver.
      attn_tune: the version of this package.
    """

    jax: str
    jaxlib: str
    triton: str = UNKNOWN
    compiler: str = UNKNOWN
    driver: str = UNKNOWN
    attn_tune: str = UNKNOWN
    source_hash: str = UNKNOWN

    @property
    def digest(self) -> str:
        """The digest of all fields."""
        return digest_json(asdict(self))

    def grade(self, row: "Environment", *, contract: int = 0, row_contract: int = 0) -> Grade:
        """Grades a stored ``row`` for use in this environment.

        ``foreign``: another contract of the op. ``stale``: the kernel's source changed, or is unknown on either
        side. ``portable``: same source, another compiler. ``verified``: same source, same compilers.
        """
        if contract != row_contract:
            return Grade.FOREIGN
        if not _same(self.source_hash, row.source_hash):
            return Grade.STALE
        pairs = (
            (self.jaxlib, row.jaxlib),
            (self.triton, row.triton),
            (self.compiler, row.compiler),
        )
        # A compiler that neither side has (Triton on a CPU) does not take part.
        if all(_same(a, b) for a, b in pairs if a != UNKNOWN or b != UNKNOWN):
            return Grade.VERIFIED
        return Grade.PORTABLE


def _same(a: str, b: str) -> bool:
    return a == b and a != UNKNOWN
