"""Lists of the tiles that a program walks, made of the mask of blocks on the device, which several kernels walk."""
