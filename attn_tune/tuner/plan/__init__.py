"""Decide what a sweep tries: grids, cases, candidates and the order of their search."""
