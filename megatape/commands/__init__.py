"""The command line: `megatape COMMAND ...`, one module per command (main.py has the table)."""
