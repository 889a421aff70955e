"""Code of kernels that cut sequences into chunks and carry states of float32 from one to the next."""
