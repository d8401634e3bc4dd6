"""megatape benchmark: measurements of a machine."""
