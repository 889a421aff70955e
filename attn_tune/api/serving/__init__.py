"""The public functions over a cache of keys and values, and merges of their results."""
