"""Code that kernels of several ops share, by the language or library that they are written in."""
