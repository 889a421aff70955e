"""What the adapters of tokamax's attention kernels share: its arguments, its residuals, and the version they are for."""
