"""Models that others pretrained, as starting points of runs; their weights are read where they are, without a copy."""
