"""Knobs that kernels of JAX's Pallas library for TPU share."""

from attn_tune.kernels.knobs import Multiple
from attn_tune.kernels.lang.pallas_tpu.memory import LANES, SUBLANES

DECIDES_NO_CODE = "checks and candidates of knobs; a row holds their values"

# Blocks of an array in VMEM, and of those that enter a product: more than 1024 columns gain nothing.
BLOCKS = (128, 256, 512, 1024, 2048)
PRODUCT_BLOCKS = BLOCKS[:-1]
VMEM_LIMIT = Multiple(doc="the most VMEM the launch may take, in KiB; None is the compiler's default")


def rows(doc: str) -> Multiple:
    """Query rows in VMEM."""
    return Multiple(SUBLANES, tried=BLOCKS, doc=doc)


def keys(doc: str) -> Multiple:
    """Keys in VMEM."""
    return Multiple(LANES, tried=BLOCKS, doc=doc)


def product_keys(doc: str) -> Multiple:
    """Keys that enter a product."""
    return Multiple(LANES, tried=PRODUCT_BLOCKS, doc=doc)


def indivisible(name: str, value: int, whole_name: str, whole: int) -> str | None:
    """The reason that one knob does not divide another, or None."""
    return f"{name}={value} must divide {whole_name}={whole}" if whole % value else None
