"""Linear attention without the delta rule, in chunks: launches that ops with different gates share."""
