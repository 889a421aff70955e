"""Kernels of ``native_sparse_attention``."""
