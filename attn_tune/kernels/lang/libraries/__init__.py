"""The shared halves of adapters of other projects' kernels."""
