"""Kernels of the op ``gla``."""
