"""Predict the time of a compiled config on an absent TPU, from its compiler's schedule."""
