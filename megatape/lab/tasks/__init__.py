"""Evaluation tasks, a file each. engine/ runs them."""
