"""The group ``attn-tune lab``."""
