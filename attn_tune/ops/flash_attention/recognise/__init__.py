"""Recognises attention in foreign programs: written out in products, or as calls of cuDNN. See ``find``."""
