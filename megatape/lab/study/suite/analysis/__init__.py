"""Statistics of a suite: cells with means over seeds, tested differences from the reference, ranks."""
