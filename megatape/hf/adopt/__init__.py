"""Models that others pretrained, as starting points of our runs: their configuration and weights in our terms, without a
copy."""
