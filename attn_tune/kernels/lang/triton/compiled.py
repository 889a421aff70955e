"""One compiled Triton kernel: its code, and what it needs of the GPU."""

import functools
import hashlib
import re
import subprocess
import tempfile
from dataclasses import dataclass, field
from typing import Any

from attn_tune.kernels.lang.triton.limits import WARP_SIZE, CompileError


@dataclass(frozen=True, kw_only=True)
class CompiledKernel:
    """One kernel for one GPU.

    Attributes:
      name: the PTX entry point.
      capability: ``10 * major + minor``.
      num_warps: warps a block is launched with: those asked for and those that warp specialisation added.
      shared_bytes: dynamic shared memory a block.
      scratch_bytes, scratch_align: global memory a block, which on-device tensor descriptors use.
      digest: SHA-256 of what is generated, without debug information; equal digests run equally.
    """

    name: str
    capability: int
    num_warps: int
    num_ctas: int
    shared_bytes: int
    tensor_memory: int
    scratch_bytes: int
    scratch_align: int
    digest: str
    ptx: str = field(repr=False)
    cubin: bytes = field(repr=False)

    @property
    def registers(self) -> int | None:
        """Registers a thread; None where Triton has no cuobjdump to read them with."""
        return self._usage[0]

    @property
    def spill_bytes(self) -> int | None:
        """Bytes of local memory a thread, which is where spilled registers live; None as for ``registers``."""
        return self._usage[1]

    @functools.cached_property
    def _usage(self) -> tuple[int | None, int | None]:
        return _resource_usage(self.cubin, self.name)


def describe(built: Any, capability: int) -> CompiledKernel:
    """Builds a ``CompiledKernel`` from the result of ``triton.compile``."""
    metadata, ptx = built.metadata, built.asm["ptx"]
    # A warp-specialised kernel has more warps than were asked for; the PTX says how many threads it wants.
    threads = re.search(r"\.reqntid\s+(\d+)", ptx)
    num_warps = int(threads[1]) // WARP_SIZE if threads else metadata.num_warps
    return CompiledKernel(
        name=metadata.name,
        capability=capability,
        num_warps=num_warps,
        num_ctas=metadata.num_ctas,
        shared_bytes=metadata.shared,
        tensor_memory=getattr(metadata, "tmem_size", None) or 0,
        scratch_bytes=metadata.global_scratch_size,
        scratch_align=metadata.global_scratch_align,
        digest=_code_digest(ptx, num_warps, metadata.num_ctas, metadata.shared),
        ptx=ptx,
        cubin=built.asm["cubin"],
    )


def _code_digest(ptx: str, *launch: int) -> str:
    # Debug sections hold the kernel's path and line numbers, which differ between hosts with equal code.
    code = ptx.partition(".section")[0]
    code = re.sub(
        r"^\s*(//|\.loc\b|\.file\b|\$L__(tmp|func_begin|func_end)\d+:).*$",
        "",
        code,
        flags=re.MULTILINE,
    )
    code = re.sub(r"\s*//.*$|^\s*\n", "", code, flags=re.MULTILINE)
    return hashlib.sha256(f"{launch}\n{code}".encode()).hexdigest()


def _resource_usage(cubin: bytes, kernel: str) -> tuple[int | None, int | None]:
    """Registers and bytes of local memory a thread, from the cuobjdump that Triton ships."""
    from triton import knobs

    try:
        cuobjdump = knobs.nvidia.cuobjdump.path
    except RuntimeError:
        # A Triton that was slimmed down. The figures are evidence; the kernel runs without them.
        return None, None
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        listing = subprocess.run(
            [cuobjdump, "--dump-resource-usage", file.name],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
    found = re.search(rf"Function {re.escape(kernel)}:\s*REG:(\d+) STACK:(\d+) .*?LOCAL:(\d+)", listing)
    if not found:
        raise CompileError(f"cuobjdump does not list kernel {kernel!r}: {listing.strip()!r}")
    registers, stack, local = map(int, found.groups())
    return registers, stack + local
