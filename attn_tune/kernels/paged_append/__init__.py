"""Kernels of ``paged_append``."""
