"""What the adapters of tokamax's kernels share: its arguments, its residuals, the version they are for."""
