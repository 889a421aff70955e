"""The op ``sparse_mla``: latent attention of every query to the keys that its own list of indices names."""
