"""What a user types: `megatape COMMAND ...`, one module for each command (main.py has the table)."""
