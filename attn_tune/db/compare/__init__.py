"""Comparison of what two sweeps or packs decided: how fast the winners of one are beside those of the other."""
