"""Values of feature problems: those that no signature says, so that a row answers calls with any, and lengths."""

# Times the problem's own scale.
OTHER_SCALE = 0.6
# A soft cap that the logits of standard normal data reach, and dropout that a few hundred weights show.
BITING_CAP, BITING_DROPOUT = 2.0, 0.25
# Query and key lengths: more than one tile of any kernel, and no multiple of one; rows before the first key; one row.
LENGTHS = ((389, 389), (197, 421), (421, 197), (1, 301))
