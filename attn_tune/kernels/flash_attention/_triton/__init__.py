"""What the Triton kernels of flash attention have in common, in one place to import it from.

It lives in ``triton``, whose source hash its stored measurements carry: a module that moved would make every one of
them stale. ``host`` is what a spec may import, without jax or triton; ``device`` is what every such kernel compiles.
What only one of them takes (the walk over keys, the bias gradient) it imports from ``triton`` itself, so that it is
not made stale by what it does not use. A kernel lists the modules behind its imports in its own ``modules``.
"""
