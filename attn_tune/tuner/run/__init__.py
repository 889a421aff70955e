"""Run a plan on isolated worker processes and yield its trials."""
