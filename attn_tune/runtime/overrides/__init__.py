"""Overrides: configs that a job must, must not or may alone use. ``active`` holds those that lookups use."""
