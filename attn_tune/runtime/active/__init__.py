"""Packs, overrides and settings that are active in this process, and the view of them that a lookup uses."""
