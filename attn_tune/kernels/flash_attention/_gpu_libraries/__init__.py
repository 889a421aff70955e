"""What adapters of other projects' GPU kernels share: what such kernels lack, and the op's contract around them."""
