"""What the Triton kernels of flash attention have in common, in one place to import it from.

It lives in ``triton``, whose source hash its stored measurements carry: a module that moved would make every one of
them stale. ``host`` is what a spec may import, without jax or triton; ``device`` is the rest. A kernel that builds on
it lists the modules behind it in its own ``modules``.
"""
