"""A comparison of the source of a kernel that a row was measured with and of the one that is installed here."""

from attn_tune.kernels.registry import find_kernel
from attn_tune.kernels.source import current_digest, library_version
from attn_tune.schema import Environment


def is_stale(kernel_id: str, measured: Environment) -> bool | None:
    """Whether lookups here grade what was ``measured`` in that environment as stale.

    That is what they do where either source is unknown too. None says that there is nothing to compare with: the kernel
    (``"op/name"``) is not installed here, or a library is not whose version is a part of its source.
    """
    spec = find_kernel(kernel_id)
    if spec is None or not all(map(library_version, spec.libraries)):
        return None
    installed = spec.environment(measured).source_hash
    return not installed or current_digest(measured.source_hash) != installed
