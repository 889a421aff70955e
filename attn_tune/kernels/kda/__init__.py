"""Kernels of the op ``kda``."""
