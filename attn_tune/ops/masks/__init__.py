"""Masks: which key a query row may see, as attention ops share it."""
