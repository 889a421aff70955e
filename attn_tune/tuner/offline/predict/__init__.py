"""Predict the time of a compiled config on a TPU that is not here, from its compiler's schedule."""
