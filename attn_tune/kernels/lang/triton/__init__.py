"""The bridge from JAX to Triton, and the tiles of kernels in Triton."""

# The modules of the bridge that decide the code of a kernel, for ``KernelSpec.modules``.
BRIDGE = tuple(f"{__name__}.{name}" for name in ("call", "compile", "compiled", "image", "launch"))
