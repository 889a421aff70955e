"""Linear attention in tiles of tokens, with and without the delta rule, and with gates of every kind."""
