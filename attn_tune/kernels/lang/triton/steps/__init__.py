"""Kernels that take states through a few tokens, one after the other."""
