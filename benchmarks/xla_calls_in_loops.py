"""A custom call that works in place, in a loop: XLA's dynamic-slice fusion gives it another buffer.

    python benchmarks/xla_calls_in_loops.py

Needs an NVIDIA GPU and ``nvcc``. The call adds one to the first row of its operand, which is its result too
(``input_output_aliases``). A scan over layers that is given the rows of each as ``xs`` and returns them as ``ys`` must
leave the other rows as they are. Printed: how far the scan is from the same calls one by one, with the pass
``dynamic-slice-fusion-rewriter`` and without it, each in a process of its own.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

_SOURCE = r"""
#include <cuda_runtime.h>
#include "xla/ffi/api/ffi.h"
namespace ffi = xla::ffi;

__global__ void add_one(float* x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] += 1.0f;
}

static ffi::Error Run(cudaStream_t stream, ffi::AnyBuffer, ffi::Result<ffi::BufferR2<ffi::F32>> y) {
  int n = static_cast<int>(y->dimensions()[1]);
  add_one<<<(n + 127) / 128, 128, 0, stream>>>(y->typed_data(), n);
  return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(AddOne, Run,
                              ffi::Ffi::Bind().Ctx<ffi::PlatformStream<cudaStream_t>>()
                                  .Arg<ffi::AnyBuffer>().Ret<ffi::BufferR2<ffi::F32>>());
"""


def child(library: str) -> None:
    """Print the greatest difference between a scan and single calls."""
    import ctypes

    import jax
    import jax.numpy as jnp

    jax.ffi.register_ffi_target("add_one", jax.ffi.pycapsule(ctypes.CDLL(library).AddOne), platform="CUDA")

    def add_one(x: jax.Array) -> jax.Array:
        result = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return jax.ffi.ffi_call("add_one", result, input_output_aliases={0: 0})(x)

    layers = jax.random.normal(jax.random.key(0), (4, 64, 256))
    scanned = jax.jit(lambda xs: jax.lax.scan(lambda c, x: (c, add_one(x)), 0, xs)[1])
    single = jnp.stack([jax.jit(add_one)(layer) for layer in layers])
    difference = jnp.abs(scanned(layers) - single).max()
    text = scanned.lower(layers).compile().as_text()
    print(
        f"JAX {jax.__version__} {jax.devices()[0].device_kind}: worst difference {float(difference)}, "
        f"dynamic-slice fusion in the program: {'dynamic_address' in text or 'dynamic_slice_fusion' in text}"
    )


def main() -> None:
    """Compile the call, and run it with and without the pass."""
    import jax

    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "add_one.cu"), str(Path(folder, "add_one.so"))
        source.write_text(_SOURCE)
        words = ["nvcc", "-shared", "-Xcompiler", "-fPIC", "-std=c++17", f"-I{jax.ffi.include_dir()}"]
        subprocess.run([*words, "-o", library, str(source)], check=True)
        for switch in ("true", "false"):
            flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_gpu_enable_dynamic_slice_fusion={switch}"
            print(f"xla_gpu_enable_dynamic_slice_fusion={switch}", flush=True)
            subprocess.run([sys.executable, __file__, library], env=os.environ | {"XLA_FLAGS": flags}, check=True)


if __name__ == "__main__":
    child(sys.argv[1]) if len(sys.argv) > 1 else main()
