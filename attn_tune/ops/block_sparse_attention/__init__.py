"""The op ``block_sparse_attention``: exact attention over the pairs of blocks that a mask of blocks lists."""
