"""Decoding, and its knobs, that several Triton kernels of ragged attention share."""
