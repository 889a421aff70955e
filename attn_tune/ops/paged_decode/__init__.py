"""The op ``paged_decode``: a few new tokens of each sequence over a paged or contiguous cache."""
