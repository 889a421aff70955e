"""The op ``ragged_paged``: new tokens of each sequence, as many as it has, over a paged or contiguous cache."""
