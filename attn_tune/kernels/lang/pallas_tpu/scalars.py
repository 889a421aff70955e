"""Scalar memory: how much tables may take of it, and how much a table takes."""

from attn_tune.kernels.lang.pallas_tpu.memory import KIB, LANES, MIB, SMEM_BYTES, SUBLANES, round_up

# Of all of it: libtpu 0.0.52 keeps some for itself, counters and semaphores, on any generation. A table of 1016 KiB
# compiled for each of them, one of 1020 KiB for v4 alone.
TABLES_BYTES = SMEM_BYTES - 8 * KIB


def table_bytes(rows: int, columns: int, itemsize: int) -> int:
    """Bytes of one ``[rows, columns]`` plane of a table: rows of whole lanes, in tiles of up to 8.

    Read from what libtpu 0.0.52 allocates for tables of 8, 16 and 32 bits. A few rows are a power of two, and at least
    a word.
    """
    sublanes = min(SUBLANES, max(4 // itemsize, 1 << (rows - 1).bit_length()))
    return round_up(rows, sublanes) * round_up(columns, LANES) * itemsize


def refuses_visits(size: int) -> str | None:
    """The reason that tables of visited blocks of so many bytes do not fit, or None."""
    if size <= TABLES_BYTES:
        return None
    return f"its tables of visited blocks take {size / MIB:.1f} MiB of scalar memory; there is 1 MiB"
