"""Callbacks of a run, a file each."""
