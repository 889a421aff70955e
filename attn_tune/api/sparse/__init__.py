"""Public functions of sparse attention: the indexer, its selection, and attention to what was selected."""
