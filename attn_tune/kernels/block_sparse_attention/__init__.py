"""Kernels of ``block_sparse_attention``."""
