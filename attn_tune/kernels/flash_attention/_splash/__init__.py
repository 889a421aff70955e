"""JAX's splash attention (block-sparse flash attention in Pallas, for TPU), as the kernels over it share it."""
