"""The arguments and residuals that both adapters of tokamax's kernels share."""
