"""Detecting dead, hanging and slow ranks; leases of folders, signals, and the log of a run."""
