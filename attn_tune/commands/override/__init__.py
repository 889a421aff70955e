"""The group ``attn-tune override``."""
