"""Fields of problems and their arguments: sizes, heads, sinks, padding, as attention ops share them."""
