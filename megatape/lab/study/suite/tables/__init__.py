"""Tables of a suite, and the files of its results."""
