"""The op ``native_sparse_attention``: attention of every query to the blocks of keys that it selects."""
