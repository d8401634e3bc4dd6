"""Destinations of a run's metrics, a file each."""
