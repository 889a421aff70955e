"""Decisions: statistics of samples, the choice of a config, the table of what was chosen."""
