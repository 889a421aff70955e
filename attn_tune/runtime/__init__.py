"""The lookup: packs in, answers out. It tunes nothing; jax is imported when a device or a trace is asked for.

``lookup.dispatch`` is the way in, and ``lookup.ladder`` finds the row that answers. ``active`` holds the packs, the
overrides and the settings that a lookup uses, ``overrides`` the entries that go before all packs.
``rank_agreement`` compares the processes of a job; ``lookup_counters``, ``misses`` and ``answer_listeners`` report.
"""
