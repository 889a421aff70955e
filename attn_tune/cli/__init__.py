"""The command line: each command parses, makes one call into the rooms below, and hands the answer to one sink."""

from attn_tune.cli.app import main as main
