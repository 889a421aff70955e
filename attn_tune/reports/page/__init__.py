"""One self-contained HTML page of everything that sweeps found: DataFrames in, text out.

``page.render`` puts the parts together; each part is a module with a function ``part`` that answers one question.
"""
