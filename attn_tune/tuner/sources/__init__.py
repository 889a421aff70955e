"""Grids that come from production: missed lookups, a traced function, a lowered program."""
