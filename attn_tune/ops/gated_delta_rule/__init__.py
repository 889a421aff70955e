"""The op ``gated_delta_rule``: linear attention whose state forgets by a gate and is corrected by the delta rule."""
