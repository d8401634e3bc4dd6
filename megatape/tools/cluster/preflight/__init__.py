"""Checks of all ranks before a run."""
