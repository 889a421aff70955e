"""Before anything of jax is imported: tests run on the CPU unless told otherwise.

Where libtpu is installed, to compile for TPUs that are not there, jax would look for a TPU first.
"""

import os

os.environ.setdefault("JAX_PLATFORMS", "cuda,cpu" if os.path.exists("/dev/nvidiactl") else "cpu")
