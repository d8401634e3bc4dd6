"""The command line: one module per command, and main.py with their table."""
