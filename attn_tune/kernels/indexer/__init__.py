"""Kernels of the op ``indexer``."""
