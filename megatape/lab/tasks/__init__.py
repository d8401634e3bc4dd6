"""Evaluation tasks: a file each, or a folder with task.py for a large one. engine/ runs them."""
