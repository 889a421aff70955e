"""tokamax's batched ragged paged attention for TPU, as the kernels of several ops over it share it."""
