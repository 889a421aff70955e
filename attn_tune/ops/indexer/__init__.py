"""The op ``indexer``: scores by which sparse attention selects the keys of each query."""
