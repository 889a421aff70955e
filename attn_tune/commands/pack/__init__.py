"""The group ``attn-tune pack``."""
