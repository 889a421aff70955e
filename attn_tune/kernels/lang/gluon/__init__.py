"""Device code in Gluon, the part of Triton that leaves layouts, copies and warps to the author."""

# Query rows of one tile: two warpgroups of 64, the rows of one Hopper matrix instruction.
TILE_ROWS = 128
