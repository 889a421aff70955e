"""Lists of the queries that name a block, which the backwards of several kernels walk."""
