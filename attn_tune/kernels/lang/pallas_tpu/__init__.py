"""Padding, facts about VMEM and rewrites of traced programs for kernels of JAX's Pallas library for TPU."""
