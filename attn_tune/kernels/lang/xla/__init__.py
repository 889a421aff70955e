"""Code in plain XLA that kernels of several ops share."""
