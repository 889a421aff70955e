"""Kernels of ``merge_attention``."""
