"""Sizes and constants of walks over chunks of tokens on Hopper. Importing it loads no triton."""

from dataclasses import dataclass

# Tokens of a chunk, and columns of a state that a group of four warps holds: the rows of a Hopper matrix instruction.
CHUNK, COLUMNS, WARPS = 64, 64, 4
# Columns of the values and states of a chunk that are differentiated at a time.
PART = 32
# Numbers of each token of a chunk that come with it, and their bytes.
NUMBERS = 4
NUMBERS_BYTES = 4 * NUMBERS * CHUNK
# Rows of states: 64 columns of more are too many registers, and copies bring panels of 64.
WIDTHS = (64, 128)
# Set aside for barriers, and for what the compiler passes between warps.
SET_ASIDE = 2048


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """Constants: Triton's cache is keyed by this value's text.

    Attributes:
      stages: chunks in shared memory.
      groups: groups of warps, each with columns of a state of its own.
      tokens: of all sequences.
      places: of what is stored of each chunk and head.
      has_outputs: the walk makes outputs; else only what segments make of states.
    """

    stages: int
    groups: int
    tokens: int
    places: int
    has_outputs: bool = True
