"""Strategies: in which order candidates are tried, and when to stop.

A strategy is a generator function over a ``Space``. It yields a batch of candidates to try next and is sent their
times, ``inf`` for a config that failed. Strategies know no device, so that a stored sweep can be replayed through them.
"""
