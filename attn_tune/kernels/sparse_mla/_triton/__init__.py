"""What the kernels of sparse latent attention in Triton share."""
