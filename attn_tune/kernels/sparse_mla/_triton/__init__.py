"""Parts that the Triton kernels of sparse latent attention share."""
