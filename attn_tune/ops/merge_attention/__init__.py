"""The op ``merge_attention``: attention over parts of the keys, merged into attention over all of them."""
