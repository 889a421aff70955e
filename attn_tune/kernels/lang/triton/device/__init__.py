"""Device code in Triton of attention kernels, and the constants that it is compiled with."""
