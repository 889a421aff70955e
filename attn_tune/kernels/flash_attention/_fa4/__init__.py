"""The shared halves of the adapters of FlashAttention-4's kernels for Hopper, as ``fa4-jax`` ships them."""
