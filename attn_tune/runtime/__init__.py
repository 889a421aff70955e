"""The lookup runtime: packs in, answers out. Standard library only; jax when a device or a trace is asked for.

``overlay`` puts packs in force (``use_pack``, ``reload``), ``packs`` reads them, ``ladder`` finds the row that answers,
``misses`` counts, ``devices`` and ``environments`` say where this is. ``attn_tune.kernels.dispatch`` is the way in.
"""
