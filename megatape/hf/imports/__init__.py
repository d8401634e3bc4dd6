"""Models that others pretrained, as starting points of our runs.

Their configuration and weights are read in our terms, without a copy.
"""
