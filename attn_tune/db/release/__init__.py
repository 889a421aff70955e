"""Packs: the release gate, export and import, merging and comparing packs."""
