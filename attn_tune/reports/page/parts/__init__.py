"""The parts of the page. Each has a ``TITLE``, the question that it answers, and ``part``, which answers it."""
