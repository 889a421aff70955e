"""The bridge from JAX to Triton, and the tiles of kernels in Triton."""
