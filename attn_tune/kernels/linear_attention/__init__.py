"""Kernels of the op ``linear_attention``."""
