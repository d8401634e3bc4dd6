"""Experiments: tasks/ (evaluation), benchmark/, study/, and report/ (pages about runs)."""
