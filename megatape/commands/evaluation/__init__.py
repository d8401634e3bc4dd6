"""Options of `megatape evaluate`, which depend on the chosen tasks."""
