"""Running evaluation tasks: evaluations in folders, their ranks, journals and tables, tensor-parallel models."""
