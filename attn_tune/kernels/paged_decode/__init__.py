"""Kernels of ``paged_decode``."""
