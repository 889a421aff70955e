"""Kernels of the op ``sparse_mla``."""
