"""Kernels of the op ``gated_delta_rule``."""
