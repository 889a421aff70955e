"""The op ``kda``: linear attention with a gate for each channel of the keys and the delta rule."""
