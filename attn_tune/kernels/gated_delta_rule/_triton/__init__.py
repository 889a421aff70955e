"""Device code that the Triton kernels of the gated delta rule share."""
