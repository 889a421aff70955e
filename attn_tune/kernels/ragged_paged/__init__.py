"""Kernels of ``ragged_paged``."""
