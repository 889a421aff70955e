"""The op ``paged_append``: new keys and values written into a paged or contiguous cache."""
