"""What the kernels over JAX's Pallas library for TPU share: padding, memory facts, and the VMEM limit as a knob."""
