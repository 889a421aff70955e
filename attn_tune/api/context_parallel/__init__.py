"""Attention whose sequence is sharded over the devices of a mesh."""
