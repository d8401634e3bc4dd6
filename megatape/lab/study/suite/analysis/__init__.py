"""Statistics of a suite: means over seeds, tested differences from the reference, ranks."""
