"""Predicting how long a compiled config would take on a device that is not here, from its compiler's schedule."""
