"""The fused backward for Hopper, in Gluon, with dq summed in any order or in a fixed one: two kernels share it."""
