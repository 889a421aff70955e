"""Tiles, limits and the bias gradient that several Triton kernels of flash attention share."""
