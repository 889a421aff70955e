"""Values of feature problems that no signature says, so that a row answers calls with any."""

# Times the problem's own scale.
OTHER_SCALE = 0.6
# A soft cap that the logits of standard normal data reach, and dropout that a few hundred weights show.
BITING_CAP, BITING_DROPOUT = 2.0, 0.25
