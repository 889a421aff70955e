"""Overrides: entries that go before packs and heuristics. *Use* this config, *never* that one, *only* what a file says.

``entries`` holds the entries and says what they match, ``files`` the file format, ``in_force`` the files of a job.
"""
