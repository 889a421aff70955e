"""Device code and constants that the Triton kernels of decoding share."""
