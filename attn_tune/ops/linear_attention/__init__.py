"""The op ``linear_attention``: linear attention without the delta rule, with at most one gate a head and token."""
