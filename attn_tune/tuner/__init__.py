"""Sweeps: plan, run in an isolated worker, validate, measure. Yields trials; knows no database and no terminal."""
