"""Device code in Gluon, the part of Triton that leaves layouts, copies and warps to the author."""
